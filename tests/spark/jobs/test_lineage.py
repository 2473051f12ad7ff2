"""What a run on Spark sends to OpenLineage, compared with the Delta tables that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pgoutput_etl.config.column_rules import SALT_VARIABLE
from pgoutput_etl.outputs.dbt import LedgerTables
from pgoutput_etl.work.batch import Watch, World
from pgoutput_etl.work.files.pipeline import apply_run
from pgoutput_etl.work.files.recorder import RunRecorder
from tests.support.jobs import Nights
from tests.support.lineage import events_of, send_to_file
from tests.support.small_archives import insert, table, transaction, truncate

pytestmark = pytest.mark.spark

SERVER = "postgres://db.example:5432"
RULES = (
    "tables=[{match: public.t, columns: {v: {hash: sha256}}}, "
    "{match: public.past, mode: history, columns: {label: {renamed_from: v}}}]"
)
T, PAST = 16401, 16402


def run(nights: Nights) -> None:
    config = nights.job.loaded(f"metrics={{openlineage: {{namespace: '{SERVER}', database: shop}}}}", RULES)
    with RunRecorder(config.source.name, config.metrics) as recorder:
        watch = Watch(enter=recorder.stages.start, lap=recorder.stages.lap)
        recorder.done(apply_run(World.of(nights.job.spark, config), watch))


@pytest.mark.soak
def test_a_run_sends_the_tables_that_it_wrote(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.job.environ[SALT_VARIABLE] = "a salt of sixteen bytes and more"
    events = tmp_path / "events.jsonl"
    send_to_file(monkeypatch, events)
    both = [table(oid=T), table(oid=PAST, name="past")]
    nights.land(transaction(1, 0x100, *both, insert("1", "secret", oid=T), insert("1", "a", oid=PAST)))
    run(nights)
    renamed = table("id", "label", oid=PAST, name="past")
    nights.land(transaction(2, 0x200, renamed, insert("2", "b", oid=PAST), insert("3", "c", oid=PAST)))
    run(nights)
    nights.land(transaction(3, 0x300, truncate(T)))
    run(nights)
    run(nights)

    _, first, _, second, _, third, _, nothing = events_of(events)
    names = [[dataset["name"] for dataset in event["inputs"]] for event in (first, second, third, nothing)]
    assert names == [["shop.public.past", "shop.public.t"], ["shop.public.past"], ["shop.public.t"], []]
    for output in (*second["outputs"], *third["outputs"]):
        delta = DeltaTable(output["name"])
        fields = {field["name"]: field["type"] for field in output["facets"]["schema"]["fields"]}
        table_schema = nights.job.spark.read.format("delta").load(output["name"]).schema
        assert fields == {field.name: field.dataType.simpleString() for field in table_schema}
        assert output["facets"]["version"]["datasetVersion"] == str(delta.version())
    [past], [emptied] = second["outputs"], third["outputs"]
    assert past["namespace"] == "file"
    assert past["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert emptied["outputFacets"]["outputStatistics"]["rowCount"] == 0
    label = past["facets"]["columnLineage"]["fields"]["label"]
    assert [source["field"] for source in label["inputFields"]] == ["label", "v"]
    [hashed] = emptied["facets"]["columnLineage"]["fields"]["v"]["inputFields"]
    assert hashed["transformations"][0]["masking"] is True
    assert "secret" not in events.read_text()

    loaded = nights.job.loaded(RULES)
    tables = LedgerTables.read(loaded)
    for state in tables.states:
        stored = nights.job.spark.read.format("delta").load(str(state.path)).schema
        columns = {column.name: column.type for column in tables.columns(state, loaded)}
        assert columns == {field.name: field.dataType.simpleString() for field in stored}, "for dbt, from the ledger"
    assert {state.table for state in tables.states} == {"past", "t"}
