"""Tools written in bash, with their parameters in comments that `argc` understands (spec/graph-agents.md 4.2).

`declarations` says what a model is told of a file, `argv` turns the arguments of a call into words, and `runnable`
gives the program that runs the file with them. No function here reads a file or starts a process.
"""

from sleipnir.tools.bash.arguments import argv
from sleipnir.tools.bash.declare import declarations
from sleipnir.tools.bash.model import BashFile
from sleipnir.tools.bash.parse import parse
from sleipnir.tools.bash.program import RAW_NAME, WORDS_FILE, runnable

__all__ = ["RAW_NAME", "WORDS_FILE", "BashFile", "argv", "declarations", "parse", "runnable"]
