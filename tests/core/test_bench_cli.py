"""`dflash-core bench` from end to end, against servers that answer at once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from openai_server import OpenAIServer

from dflash_core.cli import main

QUICK = ["--set", "gsm8k", "--set", "mtbench", "--prompts", "3", "--max-new-tokens", "8"]
DRAFTS = {"spec_verify_ct": 3, "spec_accept_histogram": [1, 1, 0, 1], "spec_draft_token_num": 9}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DFLASH_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def servers():
    """A slow one and a fast one that drafts, as `--system` arguments with `slow` as the baseline."""
    with OpenAIServer(delay=0.006) as slow, OpenAIServer(delay=0.001, extras={"meta_info": DRAFTS}) as fast:
        yield [
            *("--system", f"endpoint:url={slow.address},label=slow"),
            *("--system", f"endpoint:url={fast.address},label=fast"),
            *("--baseline", "slow"),
        ]


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    return stop.value.code or 0


def measured(capsys, *arguments):
    code = run(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def figures(data, system, group="all"):
    return next(f for f in data["figures"] if (f["system"], f["group"]) == (system, group))


def test_everything_that_was_asked_for_is_in_the_json(capsys, servers):
    code, data = measured(
        capsys,
        *servers,
        *QUICK,
        "--price-per-hour",
        "2",
        "--latency-target",
        "e2e <= 10s",
        "-c",
        "1",
        "-c",
        "2",
    )
    assert code == 0
    assert {f["level"] for f in data["figures"]} == {"1 at once", "2 at once"}
    fast = figures(data, "fast")
    assert fast["requests"] == 6
    assert fast["tokens"] == 48
    assert fast["speedup"]["low"] <= fast["speedup"]["value"] <= fast["speedup"]["high"]
    assert fast["speedup"]["value"] > 1
    assert set(fast["latencies"]) == {"ttft", "tpot", "e2e"}
    assert all(set(quantiles) == {"p50", "p95", "p99"} for quantiles in fast["latencies"].values())
    assert (fast["identical"], fast["compared"]) == (6, 6)
    assert fast["met"]["value"] == 1.0
    assert fast["goodput"] > 0
    assert fast["cost_million"] > 0
    assert fast["joules"] is None or fast["joules"] > 0
    assert fast["acceptance_length"]["value"] == pytest.approx(7 / 3)
    assert fast["hit_rate"]["value"] == pytest.approx(4 / 9)
    assert [one["value"] for one in fast["slot_acceptance"]] == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert all(one["low"] <= one["value"] <= one["high"] for one in fast["slot_acceptance"])
    assert fast["cycles_by_acceptance_length"] == [0, 6, 6, 0, 6]
    assert figures(data, "slow")["acceptance_length"] is None
    assert data["environment"]["packages"]["dflash-core"]
    assert data["environment"]["cores"] >= 1
    assert data["systems"]["fast"]["kind"] == "endpoint"
    assert data["options"]["seed"] == 0


def test_tables_are_for_people_and_say_what_is_not_reported(capsys, servers):
    assert run(*servers, *QUICK) == 0
    text = capsys.readouterr().out
    for words in ("speed-up", "ttft p99", "acceptance by slot", "identical", "not reported", "all sets"):
        assert words in text


@pytest.mark.parametrize(
    ("claim", "code"), [("speedup > 1.1 at p05", 0), ("speedup > 1000", 1), ("identical == 100%", 0)]
)
def test_a_claim_decides_the_exit_code(capsys, servers, claim, code):
    assert run(*servers, *QUICK, "--assert", claim) == code
    out, err = capsys.readouterr()
    assert claim in out
    assert ("Does not hold" in err) == (code == 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--assert", "speedup >= much"], "cannot be read"),
        (["--assert", "speedup of quick > 1"], "quick"),
        (["--set", "gsm9k"], "gsm9k"),
        (["-s", "plane"], "Did you mean 'plain'"),
        (["-s", "plain:fast"], "not NAME=VALUE"),
        (["--baseline", "x"], "--baseline"),
        (["-c", "0"], "at least 1"),
        (["--rate", "0"], "above 0"),
        (["--latency-target", "fast"], "--latency-target"),
        (["--requests", "no.jsonl"], r"no\.jsonl cannot be read"),
        (["--prompts", "1"], "target is not set"),
    ],
)
def test_what_makes_no_sense_is_a_sentence_before_anything_is_measured(capsys, arguments, words):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(words, " ".join(err.split()))


def test_a_finished_run_is_not_overwritten_and_resuming_it_asks_nothing(capsys, servers):
    arguments = [*servers, *QUICK, "--run-file", "mine.jsonl"]
    _, first = measured(capsys, *arguments)
    assert run(*arguments) == 2
    assert "--resume" in capsys.readouterr().err
    _, again = measured(capsys, *arguments, "--resume")
    assert again["figures"] == first["figures"]
    assert run(*arguments, "--resume", "--seed", "1") == 2
    assert "another benchmark" in capsys.readouterr().err


def test_a_run_that_goes_on_elsewhere_says_where_every_part_of_it_was_measured(capsys, servers, tmp_path):
    arguments = [*servers, *QUICK, "--html", "report.html"]
    _, first = measured(capsys, *arguments)
    path = tmp_path / "bench.jsonl"
    header, *lines = path.read_text().splitlines()
    elsewhere = json.loads(header)
    elsewhere["environment"] |= {"processor": "Slow 1", "measured": "yesterday"}
    path.write_text("\n".join([json.dumps(elsewhere), *lines]) + "\n")
    again = [*arguments, "--resume"]
    _, whole = measured(capsys, *again)  # nothing was missing, and so nothing was measured here
    assert (whole["environment"]["processor"], whole["resumed"]) == ("Slow 1", [])
    path.write_text("\n".join([json.dumps(elsewhere), *lines[:-3]]) + "\n")
    assert run(*again, "--json") == 0
    out, err = capsys.readouterr()
    other = f"processor was Slow 1 and is {first['environment']['processor']}"
    assert f"Not all of this run will be of one place: {other}." in " ".join(err.split())
    for _ in range(2):  # and once more, after the run file has been read again
        data = json.loads(out)
        assert data["environment"]["processor"] == "Slow 1"
        assert [one["processor"] for one in data["resumed"]] == [first["environment"]["processor"]]
        assert other in (tmp_path / "report.html").read_text()
        run(*again, "--json")
        out = capsys.readouterr().out


def test_two_runs_are_compared_figure_by_figure(capsys, servers, tmp_path):
    _, first = measured(capsys, *servers, *QUICK, "--run-file", "one.jsonl")
    other = json.loads(json.dumps(first))
    for row in other["figures"]:
        if row["speedup"]:
            row["speedup"] = {"value": 900.0, "low": 800.0, "high": 1000.0, "p05": 810.0}
    (tmp_path / "other.json").write_text(json.dumps(other))
    again = [*servers, *QUICK, "--run-file", "one.jsonl", "--resume", "--against", "other.json"]
    _, data = measured(capsys, *again)
    agree = {one["metric"]: one["agree"] for one in data["against"] if one["system"] == "fast"}
    assert agree == {
        **{"speedup": False, "speedup_e2e": True, "speedup_total": True},
        **{"acceptance_length": True, "hit_rate": True},
    }
    assert run(*again[:-1], "one.jsonl") == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "figures",
    [
        '[{"system": "fast", "level": "1 at once", "group": "all", "speedup": {"value": null}}]',
        '[{"system": "fast", "level": "1 at once", "group": "all", '
        '"speedup": {"value": NaN, "low": 1, "high": 2}}]',
        '[{"system": "fast", "level": "1 at once", "group": "all", "hit_rate": 0.5}]',
        '["fast"]',
        "3",
        "[" * 100_000,
    ],
    ids=["null", "nan", "a number", "a string", "no list", "deep"],
)
def test_an_earlier_run_that_cannot_be_compared_is_refused_before_anything_is_measured(
    capsys, servers, tmp_path, figures
):
    (tmp_path / "other.json").write_text('{"figures": ' + figures + "}")
    assert run(*servers, *QUICK, "--against", "other.json") == 2
    assert "other.json is not what" in capsys.readouterr().err
    assert not (tmp_path / "bench.jsonl").exists()


def test_requests_that_arrive_are_measured_as_a_level_of_their_own(capsys, servers):
    _, data = measured(capsys, *servers, *QUICK, "--rate", "200", "--assert", "failed == 0")
    assert {f["level"] for f in data["figures"]} == {"200 a second"}
    assert figures(data, "fast")["requests"] == 6
    assert all(one["holds"] for one in data["claims"])


def test_ctrl_c_keeps_what_is_finished_and_resume_goes_on(tmp_path):
    with OpenAIServer(delay=0.4) as server:
        command = [sys.executable, "-m", "dflash_core", "bench", *QUICK, "--json"]
        command += ["--system", f"endpoint:url={server.address},label=one"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        path = tmp_path / "bench.jsonl"
        while process.poll() is None and (not path.exists() or len(path.read_text().splitlines()) < 3):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "--resume goes on" in err
        finished = len(path.read_text().splitlines()) - 1
        assert 2 <= finished < 6
        asked = len(server.requests)
        done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
        assert figures(json.loads(done.stdout), "one")["requests"] == 6
        assert len(server.requests) - asked == 6 - finished + 1  # one more warms up


class Page(HTMLParser):
    """Tags, and every address that a page would fetch."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href")]


def test_the_report_is_one_file_that_needs_no_network(capsys, servers, tmp_path):
    label = "<b>fast</b>"
    odd = [argument.replace("label=fast", f"label={label}") for argument in servers]
    assert run(*odd, *QUICK, "-c", "1", "-c", "2", "--html", "report.html", "--assert", "speedup > 1000") == 1
    text = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe", "b"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        ElementTree.fromstring(chart)
        assert "nan" not in chart
    for words in (
        "&lt;b&gt;fast",
        "frontier",
        "Acceptance by slot",
        "Acceptance lengths",
        "NO",
        "Environment",
    ):
        assert words in text


@pytest.mark.parametrize("place", ["missing/report.html", "."])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(capsys, servers, place):
    assert run(*servers, *QUICK, "--html", place) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Give another --html" in err
    assert not os.path.exists("bench.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_what_was_measured_is_printed_although_the_report_finds_the_disk_full(capsys, servers, tmp_path):
    assert run(*servers, *QUICK, "--html", "/dev/full", "--json") == 2
    out, err = capsys.readouterr()
    assert figures(json.loads(out), "fast")["requests"] == 6
    assert "--resume with another --html" in err
    assert run(*servers, *QUICK, "--resume", "--html", "report.html") == 0
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["tables", "json"])
def test_figures_that_cannot_be_printed_are_not_lost_and_the_report_is_written(servers, tmp_path, form):
    command = [sys.executable, "-m", "dflash_core", "bench", *servers, *QUICK, "--html", "report.html", *form]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "--resume prints their figures" in done.stderr
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_server_that_stops_answering_is_counted_and_the_rest_still_reported(capsys, servers, tmp_path):
    with OpenAIServer(fail=range(1, 100)) as broken:
        extra = ["--system", f"endpoint:url={broken.address},label=broken", "--html", "report.html"]
        code, data = measured(
            capsys, *servers, *extra, *QUICK, "--assert", "failed of fast == 0", "--assert", "failed == 0"
        )
    assert code == 1
    row = figures(data, "broken")
    assert (row["requests"], row["failed"], row["speedup"]) == (6, 6, None)
    assert row["latencies"]["ttft"]["p50"] is None
    assert [c["holds"] for c in data["claims"] if c["system"] == "fast"] == [True, True]
    assert "6 (6 failed)" in (tmp_path / "report.html").read_text()


def test_requests_that_fail_say_why_and_a_system_that_answers_nothing_is_no_success(
    capsys, servers, tmp_path
):
    with OpenAIServer(fail=range(100)) as broken, OpenAIServer(fail=[1, 3]) as shaky:
        extra = [
            *("--system", f"endpoint:url={broken.address},label=broken"),
            *("--system", f"endpoint:url={shaky.address},label=shaky"),
            *("--warm-up", "0", "--html", "report.html"),
        ]
        code, data = measured(capsys, *servers, *extra, *QUICK)
        assert run(*servers, *extra, *QUICK, "--resume") == 2
    assert code == 2
    assert figures(data, "broken")["errors"] == {f"{broken.address}/v1/chat/completions{MEMORY}": 6}
    assert figures(data, "shaky")["errors"] == {f"{shaky.address}/v1/chat/completions{MEMORY}": 2}
    assert figures(data, "fast")["errors"] == {}
    out, err = capsys.readouterr()
    for text in (out, (tmp_path / "report.html").read_text()):
        assert "Failed requests" in text
        assert "500: out of memory" in text
    assert "Of shaky, 1 at once, 2 of 6 requests failed; 2 so: " in err
    assert "Error: Nothing was answered by 'broken' (1 at once)." in err


MEMORY = " answers 500: out of memory."


def test_help_has_examples_and_does_not_import_torch():
    code = (
        "import sys\nfrom dflash_core.cli import main\n"
        "try:\n    main(['bench', '--help'])\nexcept SystemExit as stop:\n"
        "    print(stop.code or 0, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert "Examples" in done.stdout
    assert "--resume" in done.stdout
