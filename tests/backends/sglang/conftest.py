"""SGLang without speculation, asked once: what every speculative server has to answer as well."""

import os

import pytest
from sglang_asks import FEATURES, GREEDY_TOKENS, benchmark_prompts, read
from sglang_server import model, serving


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
    return {"greedy": [answer["output_ids"] for answer in answers], **features}


@pytest.fixture(scope="module")
def server(request, plain, tmp_path_factory):
    """The module's own server, started with its `FLAGS` and stopped after its last test.

    It asks for `plain` so that no two servers run at a time.
    """
    module = request.module
    environment = getattr(module, "ENVIRONMENT", {})
    with serving(tmp_path_factory.mktemp("server"), *module.FLAGS, **environment) as up:
        yield up
