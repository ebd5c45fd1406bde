# Two commands for a person: `make demo` and `make test`. CI runs the same ones.
# They use the active virtual environment, or the interpreter in DFLASH_PYTHON (for a machine with a GPU and
# a torch of its own), or .venv, which they make.

.PHONY: help demo test test-long test-fast test-sglang soak-sglang check format wheel clean
.NOTPARALLEL:

# Nothing here may reach for a model hub.
export HF_HUB_OFFLINE := 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## accelerate a real model with a real draft, beside plain decoding
	CI_ENVIRONMENT=demo ci/python -m dflash_core generate --demo-pair --compare

test: ## everything, minutes on a real model included
	ci/python -m pytest

test-long: ## what `make test` does on the real pair with fewer prompts and samples, in full: half an hour
	DFLASH_TEST_PROMPTS=10 DFLASH_TEST_SAMPLES=20000 ci/python -m pytest -v tests/backends/test_real_lossless.py tests/backends/test_real_sampling.py

test-fast: ## without what takes minutes
	ci/python -m pytest -m "not slow"

test-sglang: ## real SGLang servers on this CPU, in an environment of their own (11 GB, made once)
	CI_ENVIRONMENT=demo ci/python -c "from dflash_backends.transformers.demo_model import smollm2_folder as f; f()"
	"$$(ci/engine sglang)/bin/pytest" tests/backends/sglang

soak-sglang: ## twenty minutes of clients that come and go, against a real SGLang server
	CI_ENVIRONMENT=demo ci/python -c "from dflash_backends.transformers.demo_model import smollm2_folder as f; f()"
	"$$(ci/engine sglang)/bin/python" tests/sglang_soak.py

check: ## lint, format, types, and the rules of the house
	ci/python -m ruff check .
	ci/python -m ruff format --check .
	ci/python -m mypy
	ci/python -m pytest -q tests/core/test_house.py

format: ## put the code into shape
	ci/python -m ruff check --fix .
	ci/python -m ruff format .

wheel: ## build the wheel and try it in a clean environment
	ci/wheel

clean: ## remove what the other targets made, but for .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
