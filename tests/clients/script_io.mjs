// Shared by the scripts: they take a URL and a scene as arguments, and print one JSON value per line.
export const [url, ...args] = process.argv.slice(2);
export const print = (value) => console.log(JSON.stringify(value));

export async function until(holds) {
  for (let waited = 0; waited < 20_000; waited += 5) {
    if (holds()) return;
    await new Promise((done) => setTimeout(done, 5));
  }
  throw new Error(`waited too long for ${holds}`);
}
