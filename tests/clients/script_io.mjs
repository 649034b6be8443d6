// What the scripts have in common: they are told what to do in their arguments, and print one JSON value a line.
export const [url, ...told] = process.argv.slice(2);
export const say = (value) => console.log(JSON.stringify(value));

export async function until(holds) {
  for (let waited = 0; waited < 20_000; waited += 5) {
    if (holds()) return;
    await new Promise((done) => setTimeout(done, 5));
  }
  throw new Error(`waited too long for ${holds}`);
}
