"""The agents as tools of an MCP server, over HTTP and stdio. The SDK is an extra, imported when a request comes."""
