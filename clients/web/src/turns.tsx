/** The page of all turns, `/turns`. */

import { renderPage } from "./inspector/frame.tsx";
import { TurnList } from "./inspector/list.tsx";

renderPage(() => <TurnList />);
