"""The routes of AG-UI clients: `/ag-ui`.

`endpoints` answers; `messages` is what clients send, `conversation` where in a thread it belongs, `runs` which run of
which turn they mean, `deciding` what a person has decided, `hydration` what a thread holds.
"""

from turnwire.server.routes.ag_ui.endpoints import AgUiRoutes
from turnwire.server.routes.ag_ui.paths import PATHS

__all__ = ["PATHS", "AgUiRoutes"]
