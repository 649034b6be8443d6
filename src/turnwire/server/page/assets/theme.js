"use strict";(()=>{try{let t=localStorage.getItem("turnwire.theme");(t==="light"||t==="dark")&&(document.documentElement.dataset.theme=t)}catch{}})();
