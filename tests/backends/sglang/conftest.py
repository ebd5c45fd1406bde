"""SGLang without speculation, asked once: what every speculative server has to answer as well."""

import os

import pytest
from sglang_asks import FEATURES, GREEDY_TOKENS, TO_THE_END, benchmark_prompts, read
from sglang_server import DRAFT, model, serving

NATIVE = 6
"""Prompts that SGLang's own DFLASH is asked: each set's first two."""


@pytest.fixture(scope="session", autouse=True)
def _cpu_platform():
    """For what is imported of SGLang into this process."""
    os.environ["SGLANG_PLATFORM"] = "dflash_cpu"
    if not model().is_dir():
        pytest.exit(f"{model()} is missing; `make test-sglang` makes it.", returncode=1)


@pytest.fixture(scope="session")
def prompts():
    """Token ids of 30 questions of the benchmark sets."""
    return benchmark_prompts(30)


@pytest.fixture(scope="session")
def plain(tmp_path_factory, prompts):
    """Greedy answers to the prompts, and to every feature's request, without speculation."""
    with serving(tmp_path_factory.mktemp("plain"), "--max-running-requests", "8") as server:
        answers = server.generate_all(prompts, max_new_tokens=GREEDY_TOKENS)
        features = {
            name: read(server.generate(prompt, **params)) for name, (prompt, params) in FEATURES.items()
        }
        last = server.generate(TO_THE_END, max_new_tokens=GREEDY_TOKENS, ignore_eos=True)
    return {
        "greedy": [answer["output_ids"] for answer in answers],
        "to the end": last["output_ids"],
        **features,
    }


@pytest.fixture(scope="session")
def native(tmp_path_factory, prompts):
    """What SGLang's own `DFLASH` makes of some prompts: answers and their numbers of cycles."""
    flags = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(DRAFT))
    with serving(tmp_path_factory.mktemp("native"), *flags, "--max-running-requests", "8") as server:
        answers = [server.generate(prompt, max_new_tokens=GREEDY_TOKENS) for prompt in prompts[:NATIVE]]
    return [(answer["output_ids"], answer["meta_info"]["spec_verify_ct"]) for answer in answers]


@pytest.fixture(scope="module")
def server(request, plain, tmp_path_factory):
    """The module's own server, started with its `FLAGS` and stopped after its last test.

    It asks for `plain`, and `native` where that is wanted, so that no two servers run at a time.
    """
    module = request.module
    if getattr(module, "NATIVE", False):
        request.getfixturevalue("native")
    environment = getattr(module, "ENVIRONMENT", {})
    folder = tmp_path_factory.mktemp("server")  # which is where it runs
    (folder / "settings.toml").write_text(getattr(module, "SETTINGS", ""))
    with serving(folder, *module.FLAGS, **environment) as up:
        yield up
