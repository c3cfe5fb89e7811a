"""An MCP server whose tools are agents, for programs such as coding assistants (docs/mcp.md).

`application.AgentServer` is the server object, which knows no transport; `stdio_transport` serves it to the process
that started this one. Only what serves imports the SDK: the command's help does without it.
"""
