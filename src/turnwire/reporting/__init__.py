"""Reports about turns: metrics exposition, spans, webhooks, log lines and timelines. Nothing here runs a turn."""
