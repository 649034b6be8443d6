"""A folder of Markdown notes, such as an Obsidian vault, as tools."""

from turnwire.tools.vault.folder import Vault, VaultLimits
from turnwire.tools.vault.tools import NoteIndex, vault_tools

__all__ = ["NoteIndex", "Vault", "VaultLimits", "vault_tools"]
