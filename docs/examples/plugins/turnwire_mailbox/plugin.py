from turnwire.plugins import Plugin

plugin = Plugin(name="mailbox", description="messages and answers as files", channel="turnwire_mailbox")
