"""Studies without a coordinator on the command line: fit, plan, and a study file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedspan.cli import app

NAMES = ("accra", "berlin", "cairo", "delhi", "essen", "faro")


@pytest.fixture
def study(tmp_path: Path):
    """Write a study of six sites; ``more`` is what follows its [run] engine."""
    rng = np.random.default_rng(0)
    for name in NAMES:
        rows = rng.standard_normal((30, 5)) * [5, 4, 3, 1, 1]
        np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", header="a,b,c,d,e", comments="")
    sites = "\n".join(f'{name} = "{name}.csv"' for name in NAMES)

    def write(more: str = "", solver: str = "krylov") -> str:
        path = tmp_path / "study.toml"
        path.write_text(
            f'[sites]\n{sites}\n[solve]\nn_components = 2\nsolver = "{solver}"\n[run]\nengine = "gossip"\n{more}\n'
        )
        return str(path)

    return write


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_fit_says_what_nodes_there_were(study):
    path = study('gossip = { graph = "ring", crashes = { cairo = 4.5 } }', solver="power")
    summary = json.loads(_json(call("fit", path, "--json")))
    assert summary["nodes"]["alive"] == 5
    assert summary["nodes"]["crashed"] == {"cairo": 4.5}
    assert summary["nodes"]["disagreement"] < 1e-12
    assert summary["bytes_down"] == 0
    told = call("fit", path, "--folder", str(Path(path).parent / "again"))
    assert "between neighbours, in" in told
    assert "nodes     5, whose answers differ by at most" in told
    assert "crashed: cairo" in told


def _json(output: str) -> str:
    return output[output.index("{") : output.rindex("}") + 1]


def test_a_plan_tells_the_graph_and_the_exchanges(study):
    told = call("plan", study('gossip = { graph = "ring" }'))
    assert "No coordinator: 6 nodes on a ring graph, each with 2 neighbours, 3 links across." in told
    assert "Spectral gap 0.333 (second eigenvalue 0.6667): 28 exchanges for a sum to 1e-10" in told
    assert "It stands the crash of any 1." in told
    assert "at the coordinator" not in told
    made = json.loads(call("plan", study('gossip = { graph = "ring" }'), "--json"))["gossip"]
    assert (made["nodes"], made["links"], made["exchanges"], made["stands"]) == (6, 6, 28, 1)
    assert made["gap"] == pytest.approx(1 / 3)
    assert made["noise"] is None


def test_a_private_plan_tells_the_price_of_counting_on_fewer(study):
    private = "[privacy]\nepsilon = 1.0\ndelta = 1e-5\nrow_norm = 20.0\ntrust = 'distributed'\nhonest = 4\n"
    told = call("plan", study(private, solver="auto"))
    assert "4 honest nodes are enough, so up to 2 may collude or crash; in a sum it is 1.22 times" in told
    assert "There is no coordinator: each node adds a share of the noise" in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('gossip = { graph = "rng" }', "[run.gossip] there is no graph 'rng'; did you mean 'ring'?"),
        ("gossip = { degre = 3 }", "[run.gossip] has no key 'degre'; did you mean 'degree'?"),
        ("gossip = 3", "[run] gossip = 3: expected a table"),
        ('gossip = { graph = [["accra", "brno"]] }', "names no site 'brno'"),
        ("speeds = { mean = 1.0 }", '[run.speeds] is for engine = "virtual-time"'),
    ],
)
def test_a_table_that_is_wrong_says_where(study, more, said):
    assert said in " ".join(call("fit", study(more), code=3).split())


def test_the_table_is_for_gossip_only(study, tmp_path):
    path = Path(study("gossip = { degree = 3 }"))
    path.write_text(path.read_text().replace('"gossip"', '"in-process"'))
    assert '[run.gossip] is for engine = "gossip"; it is "in-process"' in call("fit", str(path), code=3)


def test_a_run_does_not_resume(study):
    path = study('gossip = { graph = "ring", crashes = { accra = 4, cairo = 5 } }', solver="power")
    assert "falls apart into" in call("fit", path, code=5)
    assert "a gossip run does not resume" in call("fit", path, "--resume", code=6)


@pytest.mark.parametrize("verb", ["plan", "fit"])
def test_a_representation_needs_a_coordinator(study, verb):
    path = Path(study())
    text = (
        path.read_text()
        .replace('solver = "krylov"', 'estimator = "representation"')
        .replace("[solve]", '[data]\nlabel = "e"\n[solve]')
    )
    path.write_text(text)
    result = CliRunner().invoke(app, [verb, str(path)])
    assert result.exit_code != 0
    assert "has no coordinator, and representations are learnt with one" in " ".join(result.output.split())
