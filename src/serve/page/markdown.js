// Markdown of answers as nodes: never as HTML, so that no answer can be anything but text.

const make = (name, text) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  return node;
};

function inline(parent, text) {
  const parts = text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/);
  for (const part of parts) {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`"))
      parent.append(make("code", part.slice(1, -1)));
    else if (part.length > 4 && part.startsWith("**") && part.endsWith("**"))
      parent.append(make("strong", part.slice(2, -2)));
    else if (part) parent.append(part);
  }
}

export function render(text) {
  const out = document.createDocumentFragment();
  let paragraph = null, list = null, code = null;
  for (const line of text.split("\n")) {
    if (line.startsWith("```")) {
      if (code) code = null;
      else {
        const block = make("pre");
        code = make("code", "");
        block.append(code);
        out.append(block);
      }
      paragraph = list = null;
      continue;
    }
    if (code) {
      code.append(line + "\n");
      continue;
    }
    const item = line.match(/^\s*(?:([-*])|(\d+)[.)])\s+(.*)/);
    const heading = line.match(/^#{1,6}\s+(.*)/);
    if (heading) {
      const node = make("h3");
      inline(node, heading[1]);
      out.append(node);
      paragraph = list = null;
    } else if (item) {
      const name = item[1] ? "UL" : "OL";
      if (!list || list.nodeName !== name) {
        list = make(name);
        if (item[2]) list.start = Number(item[2]);
        out.append(list);
      }
      const node = make("li");
      inline(node, item[3]);
      list.append(node);
      paragraph = null;
    } else if (line.trim() === "") {
      paragraph = null;
    } else {
      list = null;
      if (paragraph) paragraph.append("\n");
      else {
        paragraph = make("p");
        out.append(paragraph);
      }
      inline(paragraph, line);
    }
  }
  return out;
}
