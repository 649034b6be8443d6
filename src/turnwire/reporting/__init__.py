"""What the outside is told of turns: metrics, spans, webhooks, log lines, timelines. Nothing here runs a turn."""
