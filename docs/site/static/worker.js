// Python next to the page, which stays alive while it works: a message asks, and one answers.

let python = null;

async function begin({ pyodide, wheel, glue }) {
  const said = (stage) => postMessage({ stage });
  said("Loading Python");
  const { loadPyodide } = await import(new URL("pyodide.mjs", pyodide));
  const found = await loadPyodide({ indexURL: pyodide });
  said("Loading NumPy, Matplotlib and npusim");
  await found.loadPackage("micropip");
  await found.pyimport("micropip").install(wheel);
  found.FS.writeFile("in_browser.py", await (await fetch(glue)).text());
  python = found.pyimport("in_browser");
}

onmessage = async ({ data: { number, begins, call, argument } }) => {
  try {
    if (begins) await begin(begins);
    else if (python === null) throw new Error("Python has not been loaded");
    const answer = begins ? {} : python[call](argument).toJs({ dict_converter: Object.fromEntries });
    postMessage({ number, answer });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};
