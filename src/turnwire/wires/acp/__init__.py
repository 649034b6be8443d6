"""The agents as an agent of the Agent Client Protocol (ACP), for editors: JSON-RPC over stdin and stdout."""
