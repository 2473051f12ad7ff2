"""Makes a click command line from the options declared at the fields of dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, get_type_hints

import click
from click.core import ParameterSource

from pgoutput_etl.options import Former, Option, Value
from pgoutput_etl.spark.options import keep, split


@dataclass(frozen=True, slots=True)
class _Declaration:
    """An option of a field. name: as typed. is_required: unless another option sets the field. is_former: accepted, but
    not shown."""

    field: Field[Any]
    option: Option
    name: str
    is_required: bool
    is_former: bool = False

    @property
    def usage(self) -> str:
        return self.name if self.option.value is None else f"{self.name} {self.option.value.name}"

    def parameter(self) -> click.Parameter:
        option = self.option
        kind = None if option.value is None else _type(option.value)
        name = None if option.value is None else option.value.name
        if not self.name.startswith("--"):
            nargs = -1 if option.is_list else 1
            return click.Argument([self.name.lower()], required=True, type=kind, nargs=nargs, metavar=self.name)
        has_number = isinstance(self.field.default, int) and not isinstance(self.field.default, bool)
        text = f"{option.help} (default: {self.field.default})" if has_number else option.help
        return click.Option(
            [self.name],
            hidden=self.is_former,
            is_flag=option.value is None or None,
            type=kind,
            metavar=name,
            multiple=option.is_list,
            help=f"{text}  [required]" if self.is_required else text,
        )


def _type(value: Value) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            return value.parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return parse


def printing(name: str, description: str, text: str) -> click.Option:
    """An option that only prints a text, like --help."""

    def print_text(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given:
            click.echo(text)
            context.exit()

    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, help=description, callback=print_text)


class Parser(click.Command):
    """parts: dataclasses whose fields declare the options. extra: further options, which set no field."""

    def __init__(
        self, name: str, description: str, end: str, parts: Sequence[type[Any]], extra: Sequence[click.Option] = ()
    ) -> None:
        self._parts = {part: list(_declarations(part)) for part in parts}
        declared = [declaration for part in self._parts.values() for declaration in part]
        arguments = [own for own in declared if not own.name.startswith("--")]
        required = [own.usage for own in declared if own.is_required and own not in arguments]
        super().__init__(
            name,
            params=[*(declaration.parameter() for declaration in declared), *extra],
            help="\n\n".join([description, *(f"{own.name}: {own.option.help}" for own in arguments)]),
            epilog="".join(f"\b\n{line}\n\n" for line in end.split("\n")),
            options_metavar=" ".join([*required, "[OPTIONS]"]),
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def parse(self, prog: str, arguments: Sequence[str]) -> tuple[Any, ...]:
        """An instance of each part. Raises UsageError, or Exit after --help."""
        with self.make_context(prog, list(arguments)) as context:
            return tuple(_instance(part, declared, context) for part, declared in self._parts.items())

    def takes(self, words: Sequence[str]) -> bool:
        """True if the words are options with their values, and no value is missing."""
        try:
            _, own = split(words)
        except ValueError:
            return False
        flags = {name: param.is_flag for param in self.params if isinstance(param, click.Option) for name in param.opts}
        remaining = iter(own)
        for word in remaining:
            name, equals, _ = word.partition("=")
            if name not in flags or (flags[name] and equals):
                return False
            if not flags[name] and not equals and next(remaining, None) is None:
                return False
        return True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments without Spark's options, which are kept for the session."""
        if ctx.resilient_parsing:  # for completion
            return super().parse_args(ctx, args)
        try:
            options, own = split(args)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from None
        keep(options)
        try:
            return super().parse_args(ctx, own)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # for the usage, which click omits for some mistakes
            raise


def _declarations(part: type[Any]) -> Iterator[_Declaration]:
    hints = get_type_hints(part, include_extras=True)
    for field in fields(part):
        metadata = getattr(hints[field.name], "__metadata__", ())
        options = [own for own in metadata if isinstance(own, Option)]
        for option in options:
            name = option.name or f"--{field.name.replace('_', '-')}"
            yield _Declaration(field, option, name, field.default is MISSING and len(options) == 1)
        for former in metadata:
            if isinstance(former, Former) and former.option is not None:
                option = replace(options[0], value=former.value or options[0].value)
                yield _Declaration(field, option, former.option, is_required=False, is_former=True)


def _instance(part: type[Any], declared: Sequence[_Declaration], context: click.Context) -> Any:
    values: dict[str, Any] = {}
    names: dict[str, list[str]] = {own.field.name: [] for own in declared if own.field.default is MISSING}
    for own in declared:
        parameter = own.name.lstrip("-").replace("-", "_").lower()
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            names.setdefault(own.field.name, []).append(own.name)
            values[own.field.name] = own.option.means if own.option.value is None else context.params[parameter]
            values.update(own.option.also)
    for name, given in names.items():
        if len(given) != 1:
            choices = [own.name for own in declared if own.field.name == name and not own.is_former]
            if not given and len(choices) == 1:
                raise click.UsageError(f"Missing option '{choices[0]}'.", context)
            raise click.UsageError(f"expected one of {', '.join(dict.fromkeys([*choices, *given]))}", context)
    return part(**values)
