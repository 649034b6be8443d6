/** The page of one turn, `/turns/{id}`, or of two, `/turns/{id}?compare={id}`. */

import { turnIdOf } from "./inspector/address.ts";
import { ComparePage } from "./inspector/compare.tsx";
import { renderPage } from "./inspector/frame.tsx";
import { TurnPage } from "./inspector/turn_page.tsx";

const turnId = turnIdOf(location.pathname);
const compared = new URLSearchParams(location.search).get("compare");

renderPage(() => (compared ? <ComparePage ids={[turnId, compared]} /> : <TurnPage turnId={turnId} />));
