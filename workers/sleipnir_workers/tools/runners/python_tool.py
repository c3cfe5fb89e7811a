"""Hands a call to python_call.py, beside this file: started by the worker as `python3 python_tool.py`, never imported.

The file that an interpreter is started with is compiled each time. This one is short; the code of the other is kept in
`__pycache__`, as that of any module is.
"""

import os.path
import sys
from _frozen_importlib_external import SourceFileLoader

NAME = "sleipnir_python_call"
FILE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "python_call.py")  # noqa: PTH118, PTH120

runner = type(sys)(NAME)
runner.__file__ = FILE
keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # tools leave none in the folders of agents
SourceFileLoader(NAME, FILE).exec_module(runner)
sys.dont_write_bytecode = keeps_none
runner.main((FILE, __file__))
