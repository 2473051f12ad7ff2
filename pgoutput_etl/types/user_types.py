"""What is known of types that are not built in: their names, as Type messages and the configuration give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UserTypes:
    """names: type OID -> (namespace, name), as the archive's Type messages say; of a domain, its base type's.

    configured: the configuration's `types`, a type's name -> what its values shall become.
    """

    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)


NO_USER_TYPES = UserTypes()
