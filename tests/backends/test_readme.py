"""What the README shows is what happens."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_first_example_prints_what_stands_below_it(monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = re.search(r"\n```python\n(.*?)```\n\n````\n(.*?)````\n", text, re.DOTALL).groups()
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == printed
