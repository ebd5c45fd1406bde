"""From a folder to a spec or a checkpoint, whatever the layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from dflash_core.checkpoint.base import EMBEDDING, HEAD, Dialect, DraftCheckpoint
from dflash_core.checkpoint.files import CONFIG, Folder, file_names, open_folder, read_json
from dflash_core.checkpoint.keys import label, show
from dflash_core.checkpoint.refused import foreign_tensor, refusal, refused_file
from dflash_core.checkpoint.shapes import D2T, INTEGERS, own_shapes, tensor_shapes
from dflash_core.checkpoint.weights import FLOATS, NAMES, Entry, find_weights, read_tensors
from dflash_core.errors import CheckpointError, DFlashError, PluginError
from dflash_core.spec import DraftSpec

if TYPE_CHECKING:
    from torch import Tensor

Dialects = Mapping[str, Dialect]


@dataclass(frozen=True)
class Survey:
    """A checkpoint whose config and headers have been read and agree; no tensor has.

    Attributes:
        entries: canonical name -> where the tensor lies, redundant tensors of the layout included.
    """

    folder: Folder
    dialect: Dialect
    spec: DraftSpec
    entries: Mapping[str, Entry]

    @property
    def where(self) -> str:
        """The config, for messages."""
        return self.folder.where(CONFIG)


def load_checkpoint(path: str | os.PathLike[str], dialects: Dialects | None = None) -> DraftCheckpoint:
    """Read a draft checkpoint: config, then headers, then tensors, each checked before the next.

    Takes at most the size of the weight files in memory, and a constant.

    Args:
        path: a local folder; a Hugging Face snapshot in its cache will do.
        dialects: name -> dialect; `None` means those of the installed plugins.

    Raises:
        CheckpointError: naming the file, and the key or tensor where there is one.
    """
    return read_surveyed(survey_checkpoint(path, dialects))


def read_surveyed(survey: Survey) -> DraftCheckpoint:
    """Read the tensors of a survey.

    Raises:
        CheckpointError: naming the file and the tensor.
    """
    tensors = read_tensors(survey.folder, survey.entries)
    try:
        tensors = survey.dialect.decode(tensors)
        check_vocabulary(survey.spec, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{survey.folder.path}: {error}") from error
    return DraftCheckpoint(survey.spec, tensors, survey.folder.path)


def read_spec(path: str | os.PathLike[str], dialects: Dialects | None = None) -> DraftSpec:
    """The spec of a draft from its config alone; the weights need not be there.

    `owns_embedding` and `owns_head` then say what the config says; a file may hold more.

    Raises:
        CheckpointError: naming the file, and the key where there is one.
    """
    return _read(open_folder(path), dialects)[1]


def survey_checkpoint(path: str | os.PathLike[str], dialects: Dialects | None = None) -> Survey:
    """Read config and headers, and check that the tensors are exactly those that the config asks for.

    Raises:
        CheckpointError: naming the file, and the key or tensor where there is one.
    """
    folder = open_folder(path)
    dialect, spec = _read(folder, dialects)
    refused = refused_file(file_names(folder))
    if refused is not None:
        raise CheckpointError(f"{folder.where(refused[0])}: this is {refused[1]}. It is not understood yet.")
    on_disk = find_weights(folder)
    optional = {name: disk for name, disk in dialect.optional(spec).items() if disk in on_disk}
    spec = replace(
        spec,
        owns_embedding=spec.owns_embedding or EMBEDDING in optional,
        owns_head=spec.owns_head or HEAD in optional,
    )
    names = {**dialect.names(spec), **optional}
    _check_names(folder, names, on_disk)
    entries = {name: on_disk[disk] for name, disk in names.items()}
    shapes = own_shapes(spec) | tensor_shapes(spec)
    for name, entry in entries.items():
        _check_entry(folder, names[name], name, entry, shapes[name])
    if spec.target_hidden_size not in (None, spec.hidden_size) and not (
        spec.owns_embedding and spec.owns_head
    ):
        raise CheckpointError(
            f"{folder.where(CONFIG)}: target_hidden_size is {spec.target_hidden_size} and hidden_size "
            f"{spec.hidden_size}, so the draft needs an embedding and a head of its own, but it has not."
        )
    return Survey(folder, dialect, replace(spec, dtype=NAMES[entries["fc.weight"].dtype]), entries)


def find_dialects(dialects: Dialects | None) -> dict[str, Dialect]:
    """The dialects given, or those of the installed plugins; one that cannot be imported is left out.

    What cannot be imported is listed by `dflash-core plugins`.
    """
    if dialects is not None:
        return dict(dialects)
    from dflash_core.plugins import registry

    found: dict[str, Dialect] = {}
    installed = registry("dialects")
    for name in installed:
        try:
            found[name] = installed[name]
        except PluginError:
            continue
    return found


def check_vocabulary(spec: DraftSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError when `d2t` leads out of the target's vocabulary or to one token twice."""
    if D2T not in tensors:
        return
    ids = tensors[D2T]
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab_size:
        raise CheckpointError(f"d2t leads to tokens outside the vocabulary of {spec.vocab_size}.")
    if bool((ids.sort().values.diff() == 0).any()):
        raise CheckpointError("d2t leads to one token twice.")


def _read(folder: Folder, dialects: Dialects | None) -> tuple[Dialect, DraftSpec]:
    where = folder.where(CONFIG)
    config = read_json(folder, CONFIG)
    known = find_dialects(dialects)
    matching = [dialect for dialect in known.values() if _matches(dialect, config)]
    if len(matching) > 1:
        raise PluginError(f"{where} is claimed by the dialects {' and '.join(one.name for one in matching)}.")
    if not matching:
        raise CheckpointError(f"{where}: {refusal(config) or _unrecognised(config, known)}")
    return matching[0], matching[0].read(config, where)


def _matches(dialect: Dialect, config: Mapping[str, Any]) -> bool:
    try:
        return dialect.matches(config)
    except DFlashError:
        raise
    except Exception as error:
        raise PluginError(f"The dialect {dialect.name} failed on a config: {error!r}.") from error


def _unrecognised(config: Mapping[str, Any], known: Dialects) -> str:
    return (
        f"architectures is {show(config.get('architectures'))} and speculators_model_type is "
        f"{show(config.get('speculators_model_type'))}, which no dialect recognises. There are: "
        f"{', '.join(known) or 'none'}."
    )


def _check_names(folder: Folder, names: Mapping[str, str], on_disk: Mapping[str, Entry]) -> None:
    wanted = set(names.values())
    missing = [disk for disk in names.values() if disk not in on_disk]
    extra = sorted(on_disk.keys() - wanted)
    if extra and foreign_tensor(extra[0]):
        missing = []
    if missing:
        near = get_close_matches(missing[0], extra, 1)
        guess = f" There is {label(near[0])}." if near else ""
        raise CheckpointError(f"{folder.path}: tensor {missing[0]} is missing{_more(missing)}.{guess}")
    if extra:
        file = folder.where(on_disk[extra[0]].file)
        raise CheckpointError(
            f"{file}: tensor {label(extra[0])}{foreign_tensor(extra[0])} is not understood{_more(extra)}."
        )


def _more(names: list[str]) -> str:
    others = ", ".join(label(name) for name in names[1:4])
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f" (so are {others}{rest})" if others else ""


def _check_entry(folder: Folder, disk: str, name: str, entry: Entry, shape: tuple[int, ...]) -> None:
    at = f"{folder.where(entry.file)}: {disk}"
    if entry.shape != shape:
        raise CheckpointError(
            f"{at} has the shape {show([*entry.shape])}, but {CONFIG} asks for {show([*shape])}."
        )
    allowed = (INTEGERS[name],) if name in INTEGERS else FLOATS
    if entry.dtype not in allowed:
        raise CheckpointError(f"{at} has the dtype {entry.dtype}; it must be {' or '.join(allowed)}.")
