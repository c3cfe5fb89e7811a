"""Tools written in bash, with parameters declared in comments in the format of `argc` (spec/graph-agents.md 4.2).

`declarations` gives the tools of a file for a model, `argv` converts the arguments of a call to words, and `runnable`
gives the program that runs the file with them. No function here reads a file or starts a process.
"""

from sleipnir.tools.bash.arguments import argv
from sleipnir.tools.bash.declare import declarations
from sleipnir.tools.bash.model import BashFile
from sleipnir.tools.bash.parse import parse
from sleipnir.tools.bash.program import RAW_NAME, WORDS_FILE, runnable

__all__ = ["RAW_NAME", "WORDS_FILE", "BashFile", "argv", "declarations", "parse", "runnable"]
