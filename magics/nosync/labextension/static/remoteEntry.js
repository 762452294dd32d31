// The JupyterLab extension: cells that begin with `%%dd sql` are highlighted as SQL.
//
// JupyterLab loads a prebuilt extension as a container of modules, which a bundler usually writes.
// This one has a single module and uses one of JupyterLab's own, so it is written by hand.

(() => {
  const SQL = 'text/x-sql';
  const MAGIC = /^\s*%%dd\s+sql\b/i;

  // Sets the language of one cell by its first line, now and after each change of its text.
  function follow(model, fallback) {
    if (model.type !== 'code') return;
    let before = null; // the language of the cell while it is not SQL
    const update = () => {
      const isSql = MAGIC.test(model.sharedModel.getSource().slice(0, 200));
      if (isSql && model.mimeType !== SQL) {
        before = model.mimeType;
        model.mimeType = SQL;
      } else if (!isSql && model.mimeType === SQL) {
        model.mimeType = before ?? fallback();
        before = null;
      }
    };
    model.sharedModel.changed.connect(update);
    model.mimeTypeChanged.connect(update); // the notebook sets the kernel's language
    update();
  }

  function plugin(tracker) {
    return {
      id: 'nosync:sql-cells',
      autoStart: true,
      requires: [tracker],
      activate: (_app, notebooks) => {
        const known = new WeakSet();
        const visit = (panel) => {
          const notebook = panel.content;
          const visitCells = () => {
            for (const cell of notebook.model?.cells ?? []) {
              if (known.has(cell)) continue;
              known.add(cell);
              follow(cell, () => notebook.codeMimetype);
            }
          };
          const visitModel = () => {
            notebook.model?.cells.changed.connect(visitCells);
            visitCells();
          };
          notebook.modelChanged.connect(visitModel);
          visitModel();
        };
        notebooks.forEach(visit);
        notebooks.widgetAdded.connect((_sender, panel) => visit(panel));
      },
    };
  }

  let scope = null;

  // Returns a module that JupyterLab shares with its extensions.
  async function shared(name) {
    const versions = Object.values(scope[name] ?? {});
    if (!versions.length) throw new Error(`JupyterLab does not share ${name}`);
    const load = await versions[0].get();
    return load();
  }

  const container = {
    init: (given) => {
      scope = given;
    },
    get: async (name) => {
      if (name !== './extension') throw new Error(`nosync has no module ${name}`);
      const { INotebookTracker } = await shared('@jupyterlab/notebook');
      const made = { __esModule: true, default: plugin(INotebookTracker) };
      return () => made;
    },
  };
  window._JUPYTERLAB = window._JUPYTERLAB ?? {};
  window._JUPYTERLAB.nosync = container;
})();
