"""What torch.export prints: into the log if the export fails, so that an error is one sentence."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

_LOG = logging.getLogger("entrim")


class _Capture(logging.Filter):
    """Writes the records of a handler to `stream` instead."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__()
        self.stream = stream

    def filter(self, record: logging.LogRecord) -> bool:
        """Write the message, and omit it from the handler; structured traces have none."""
        if "__" in record.name:
            return True
        self.stream.write(f"{record.name}: {record.getMessage()}\n")
        return False


@contextmanager
def log_diagnostics(what: str) -> Iterator[None]:
    """Log at level DEBUG what the block prints, if it fails; otherwise print it afterwards."""
    out, err, begin = io.StringIO(), io.StringIO(), (sys.stdout, sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(err), _capture_torch_logs(err):
            yield
    except BaseException:
        if text := (out.getvalue() + err.getvalue()).strip():
            _LOG.debug("%s printed:\n%s", what, text)
        raise
    for stream, text in zip(begin, (out, err), strict=True):
        if stream is not None and text.getvalue():
            stream.write(text.getvalue())


@contextmanager
def _capture_torch_logs(stream: io.StringIO) -> Iterator[None]:
    """Write the messages of PyTorch's loggers to `stream`; their handlers keep the first stderr."""
    known = logging.root.manager.loggerDict
    names = [name for name in known if name.startswith("torch") and "__" not in name]
    handlers = {handler for name in names for handler in logging.getLogger(name).handlers}
    capture = _Capture(stream)
    with ExitStack() as stack:
        for handler in handlers:
            handler.addFilter(capture)
            stack.callback(handler.removeFilter, capture)
        yield
