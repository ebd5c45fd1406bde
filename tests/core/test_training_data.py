"""Prompts are read from what people have, each once, and nothing that a benchmark asks is among them."""

import json

import pytest

from dflash_core.bench.prompts import load_prompts
from dflash_core.errors import DFlashError
from dflash_core.training.data.excerpts import LANGUAGES, cut, prompts_of_folder
from dflash_core.training.data.gather import choose, gather_prompts, read_prompts
from dflash_core.training.data.overlap import Overlap
from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.screen import screen


def written(path, *records):
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SHARE = {
    "source": "somewhere",
    "conversations": [
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "two"},
        {"from": "human", "value": "three"},
        {"from": "gpt", "value": "four"},
    ],
}
DEEP = b"[" * 100_000
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]}


def test_every_usual_shape_is_read_and_the_last_answers_are_left_to_the_target(tmp_path):
    path = written(tmp_path / "all.jsonl", {"prompt": "plain"}, CHAT, SHARE, PARTS)
    plain, chat, share, parts = read_prompts([path])
    assert plain == Prompt((("user", "plain"),), "all.jsonl")
    assert chat.messages == (("user", "a"),)
    assert share.messages == (("user", "one"), ("assistant", "two"), ("user", "three"))
    assert share.source == "somewhere"
    assert parts.text == "in parts"


def test_one_json_list_is_as_good_as_lines(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([CHAT, SHARE]))
    lines = written(tmp_path / "lines.jsonl", CHAT, SHARE)
    assert [p.id for p in read_prompts([tmp_path / "list.json"])] == [p.id for p in read_prompts([lines])]


def test_a_line_separator_inside_a_string_does_not_end_a_line(tmp_path):
    path = written(tmp_path / "lines.jsonl", {"prompt": "one\u2028two\x85three"})
    assert [p.text for p in read_prompts([path])] == ["one\u2028two\x85three"]


def test_the_same_prompt_in_other_white_space_counts_once_whatever_file_it_is_in(tmp_path):
    first = written(tmp_path / "a.jsonl", {"prompt": "What is it?"}, {"prompt": "What  is\nit? "})
    second = written(tmp_path / "b.jsonl", {"prompt": "What is it?"}, {"prompt": "what is it?"})
    gathered = gather_prompts([first, second])
    assert [p.text for p in gathered.prompts] == ["What is it?", "what is it?"]
    assert gathered.duplicates == 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'{"prompt": "a"}\nnonsense\n', "line 2 is not JSON"),
        (b'{"text": "a"}\n', "line 1 is no prompt. Expected is"),
        (b"[1, 2]", "entry 1 is no prompt"),
        (b'[{"prompt": "a"}', "begins like a JSON list and is not one"),
        (b'{"prompt": 7}\n', "line 1 is no prompt"),
        (b'{"messages": [{"role": "wizard", "content": "a"}]}\n', "the role 'wizard' is not known"),
        (b'{"messages": []}\n', "there is nothing to answer"),
        (b'{"prompt": "  "}\n', "there is nothing to answer"),
        (b'{"conversations": [{"from": "gpt", "value": "a"}]}\n', "there is nothing to answer"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b'{"prompt": ' + DEEP, "line 1 is nested too deeply to be read"),
        (DEEP, "begins like a JSON list and is nested too deeply"),
        (
            b'{"prompt": "bad \\ud800 x"}\n',
            "line 1: the character at 4 of a text is half of a surrogate pair",
        ),
        (b'{"prompt": [{"text": [{"text": "a"}]}]}\n', "line 1 is no prompt"),
        (b"", "There are no prompts in"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_that_names_it(tmp_path, content, named):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(DFlashError) as caught:
        read_prompts([path])
    assert named in str(caught.value)
    assert "prompts.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_malformed_entries_can_be_counted_instead(tmp_path):
    path = tmp_path / "prompts.jsonl"
    deep = '{"prompt": ' + DEEP.decode()
    path.write_text(
        f'{{"prompt": "a"}}\nnonsense\n{{"prompt": ""}}\n{deep}\n{{"prompt": "\\ud800"}}\n{{"prompt": "b"}}\n'
    )
    gathered = gather_prompts([path], lenient=True)
    assert ([p.text for p in gathered.prompts], gathered.malformed) == (["a", "b"], 4)


def test_where_a_prompt_came_from_is_a_word_or_the_files_name(tmp_path):
    path = tmp_path / "prompts.jsonl"
    nested = "[" * 900 + "]" * 900
    path.write_text(f'{{"prompt": "a", "source": {nested}}}\n{{"prompt": "b", "source": 7}}\n')
    assert [p.source for p in read_prompts([path])] == ["prompts.jsonl", "7"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DFlashError, match=r"none\.jsonl cannot be read: No such file"):
        read_prompts([tmp_path / "none.jsonl"])


@pytest.fixture
def folder(tmp_path):
    """Text and code, a hidden folder, a binary and a file of another kind."""
    root = tmp_path / "project"
    (root / "inner").mkdir(parents=True)
    (root / ".git").mkdir()
    lines = [f"value_{index} = compute({index}, {index * 7})" for index in range(400)]
    (root / "inner/code.py").write_text("\n".join(lines))
    (root / "notes.md").write_text("A long paragraph without a break. " * 200)
    (root / ".git/hidden.py").write_text("secret = 1\n" * 100)
    (root / "broken.txt").write_bytes(b"\xff\xfe" * 300)
    (root / "picture.png").write_bytes(b"\x89PNG")
    return root


def test_a_folder_becomes_excerpts_with_tasks_always_the_same_for_a_seed(folder):
    prompts, left_out = prompts_of_folder(folder, seed=1, longest=600, per_file=5)
    again, _ = prompts_of_folder(folder, seed=1, longest=600, per_file=5)
    other, _ = prompts_of_folder(folder, seed=2, longest=600, per_file=5)
    assert prompts == again
    assert prompts != other
    assert left_out == 1
    assert sorted({p.source for p in prompts}) == ["inner/code.py", "notes.md"]
    assert len(prompts) == len({p.id for p in prompts}) == 10
    assert all("value_" in p.text and LANGUAGES[".py"] in p.text for p in prompts if "code" in p.source)
    assert not any("secret" in p.text for p in prompts)
    assert all(len(p.text) < 600 + 120 for p in prompts)


def test_another_file_changes_nothing_about_the_excerpts_of_this_one(folder):
    before, _ = prompts_of_folder(folder)
    (folder / "aaa.txt").write_text("something new, and more of it. " * 60)
    after, _ = prompts_of_folder(folder)
    assert [p for p in after if p.source != "aaa.txt"] == before


def test_excerpts_do_not_overlap_and_are_whole_lines():
    text = "\n".join(f"line {index} " + "x" * (index % 50) for index in range(500))
    pieces = cut(text, 700)
    assert all(350 < len(piece) <= 700 for piece in pieces[:-1])
    lines = [line for piece in pieces for line in piece.split("\n")]
    assert lines == text.split("\n")[: len(lines)]


def test_a_folder_without_text_is_one_sentence(tmp_path):
    with pytest.raises(DFlashError, match="has no files of text or code"):
        read_prompts([tmp_path])


def test_a_larger_choice_keeps_what_a_smaller_one_chose():
    prompts = [Prompt((("user", f"question {index}"),), "here") for index in range(50)]
    few, more = choose(prompts, 10, seed=3), choose(prompts, 20, seed=3)
    assert len(few) == 10
    assert set(few) < set(more)
    assert few != choose(prompts, 10, seed=4)
    assert more == [p for p in prompts if p in more]


def disguised(text):
    """Other white space, other case, other punctuation, invisible characters, a frame around it."""
    spread = "  \n\t".join(text.upper().split())
    return f"Hello! Please help me with the following:\n\n{spread.replace('.', ' ;')}\u200b\n\nThank you."


@pytest.mark.parametrize("name", ["humaneval", "gsm8k", "mtbench"])
def test_a_benchmark_question_is_found_in_whatever_dress(name):
    questions = [messages[0]["content"] for messages in load_prompts(name)]
    find = Overlap({name: questions, "others": ["What is the capital of France?"]})
    assert all(find(text) == name for text in questions)
    assert all(find(disguised(text)) == name for text in questions)
    assert sum(find(text[len(text) // 3 :]) == name for text in questions) > 0.7 * len(questions)


def test_texts_that_share_the_frame_or_a_few_words_are_not_taken_for_questions():
    find = Overlap({"humaneval": [messages[0]["content"] for messages in load_prompts("humaneval")]})
    own = (
        "Complete this Python function.\n\n```python\nfrom typing import List\n\n\ndef spread(values: "
        'List[float], least: float) -> List[float]:\n    """Keep what is at least `least` above the one '
        'before it.\n    """\n```'
    )
    assert find(own) is None
    assert find("Hello") is None
    assert find("") is None


def test_prompts_of_benchmarks_and_of_ones_own_sets_are_left_out_and_counted(tmp_path):
    question = load_prompts("gsm8k", 1)[0][0]["content"]
    held_out = written(
        tmp_path / "held.jsonl", {"prompt": "Where do the swallows of our village go in winter?"}
    )
    prompts = [
        Prompt((("user", text),), "here")
        for text in (
            "Why is the sky blue?",
            disguised(question),
            "Tell me: where do the swallows of  our village go in winter?",
        )
    ]
    screened = screen(prompts, [held_out])
    assert screened.prompts == prompts[:1]
    assert screened.overlaps == {"humaneval": 0, "gsm8k": 1, "mtbench": 0, str(held_out): 1}
    assert screened.not_compared == {}


def test_a_set_whose_package_is_missing_is_named_with_what_brings_it(monkeypatch):
    from dflash_core.bench import prompts as sets

    lost = sets.PromptSet("not-installed-at-all", "x.jsonl", lambda record: "")
    monkeypatch.setitem(sets.SETS, "gsm8k", lost)
    screened = screen([Prompt((("user", "Why?"),), "here")])
    assert list(screened.not_compared) == ["gsm8k"]
    assert "pip install --no-deps not-installed-at-all" in screened.not_compared["gsm8k"]
    assert "gsm8k" not in screened.overlaps
