"""TensorBoard event files, one for each run, with its hyperparameters."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from .names import EPOCH, plain, renamed
from .runs import Point, Run

STATUS = {"failed": Status.STATUS_FAILURE}  # any other state is a success


class TensorBoard:
    """Event files below a folder, at STUDY/RUN.

    An epoch is one record, which readers see whole or not at all. A record that a killed process left unfinished is
    cut off. The step is the number of environment steps, or of epochs for a task without an environment.
    """

    def __init__(self, folder: Path, names: str):
        self.folder, self.names = folder, names
        self._ended: set[str] = set()

    def last(self, run: Run) -> int:
        """Return the last epoch in the run's file."""
        path, epoch, whole = self._path(run), 0, 0
        if not path.exists():
            return 0
        for record, whole in _records(path.read_bytes()):  # noqa: B007 - the last end is used below
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.tag == EPOCH:
                    epoch = round(value.simple_value)
                if value.tag == metadata.SESSION_END_INFO_TAG:
                    self._ended.add(run.name)
        with path.open("r+b") as file:
            file.truncate(whole if epoch else 0)  # before the first epoch, the hyperparameters may be incomplete
        return epoch

    def write(self, run: Run, points: Sequence[Point]) -> None:
        """Append an event for each point."""
        path = self._path(run)
        events: list[Event] = []
        if not path.exists() or not path.stat().st_size:
            path.parent.mkdir(parents=True, exist_ok=True)
            events.append(Event(wall_time=run.started, file_version="brain.Event:2"))
            summary = hparams_pb(plain({**run.hyperparameters, "seed": run.seed}), run.name, run.started)
            events.append(Event(wall_time=run.started, summary=summary))
        for point in points:
            tags = renamed(point.metrics, self.names) | {EPOCH: float(point.epoch)}
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
            step = int(point.metrics.get("env_steps", point.epoch))
            events.append(Event(wall_time=point.time, step=step, summary=Summary(value=values)))
        self._append(path, events)

    def end(self, run: Run) -> None:
        """Append the run's final state once."""
        path = self._path(run)
        if run.name in self._ended or not path.exists():
            return
        self._ended.add(run.name)
        end = SessionEndInfo(status=STATUS.get(run.state, Status.STATUS_SUCCESS), end_time_secs=run.finished or 0.0)
        about = metadata.create_summary_metadata(HParamsPluginData(session_end_info=end))
        value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
        self._append(path, [Event(wall_time=run.finished or run.started, summary=Summary(value=[value]))])

    def flush(self) -> None:
        """Do nothing: each write is visible at once."""

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, run: Run) -> Path:
        """Return the path of the run's file, the same in each process."""
        return self.folder / _below(run.group) / run.name / "events.out.tfevents.0.rekindle"

    @staticmethod
    def _append(path: Path, events: Sequence[Event]) -> None:
        content = BytesIO()
        records = RecordWriter(content)
        for event in events:
            records.write(event.SerializeToString())
        with path.open("ab") as file:
            file.write(content.getvalue())


def _below(name: str) -> str:
    """Return a study's name as a path that cannot leave the folder."""
    return "/".join((part.replace(".", "%2E") or "%2F") if set(part) <= {"."} else part for part in name.split("/"))


def _records(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield a file's complete records, each with its end's offset.

    A record consists of its length (8 bytes), a checksum of that (4 bytes), the data, and their checksum (4 bytes).
    """
    begin = 0
    while len(content) >= begin + 12:
        [length] = struct.unpack_from("<Q", content, begin)
        end = begin + 12 + length + 4
        if end > len(content):
            return
        yield content[begin + 12 : end - 4], end
        begin = end
