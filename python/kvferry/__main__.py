# SPDX-License-Identifier: Apache-2.0
"""The command line tool: ``python -m kvferry replay`` is ``kvferry replay``."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the tool of this package, with this process's arguments: exit codes and signals are the tool's."""
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "kvferry")
    # Python ignores these two, which a program that takes its place would inherit: `kvferry list | head` would
    # end in an error message.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(tool, ["kvferry", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"kvferry: cannot run the command line tool of this package: {error}")


if __name__ == "__main__":
    main()
