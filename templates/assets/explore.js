"use strict";
/* The explorer: timeline, map of segments, stacks and table of one device, over all blocks of the window. */
(() => {
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const CHUNK = 512;
  const GROUPS = 9;
  const MODES = ["site", "category", "stream", "pool", "step"];

  const bytes = (value) => {
    let unit = 0;
    let number = Math.abs(value);
    while (number >= 1024 && unit < UNITS.length - 1) { number /= 1024; unit += 1; }
    const text = unit ? number.toFixed(2).replace(/\B(?=(\d{3})+(?!\d)\.)/g, ",") : String(Math.round(number));
    return (value < 0 ? "-" : "") + text + " " + UNITS[unit];
  };
  const count = (value) => Math.round(value).toLocaleString("en-US");
  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "text") element.textContent = value;
      else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };

  async function unpack(text) {
    const raw = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const size = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    let at = 4 + size + ((4 - (size % 4)) % 4);
    const columns = new Map();
    for (const name of head.columns) {
      columns.set(name, new Int32Array(buffer, at, head.lives));
      at += 4 * head.lives;
    }
    return new Model(head, columns);
  }

  /* All blocks, and what was allocated at any event. */
  class Model {
    constructor(head, columns) {
      this.head = head;
      this.events = head.events;
      const lives = head.lives;
      this.lives = lives;
      this.born = new Int32Array(lives);
      this.died = new Int32Array(lives);
      this.size = new Float64Array(lives);
      this.address = new Float64Array(lives);
      for (const name of ["site", "stack", "category", "stream", "pool", "freed_by", "waits"]) this[name] = columns.get(name);
      const gaps = columns.get("born");
      const lasts = columns.get("lasts");
      const sizes = columns.get("size");
      const addresses = columns.get("address");
      this.change = new Int32Array(this.events);
      this.before = [];
      let born = -1;
      for (let life = 0; life < lives; life += 1) {
        born += gaps[life];
        this.born[life] = born;
        this.died[life] = lasts[life] ? born + lasts[life] : this.events;
        this.size[life] = head.sizes[sizes[life]];
        this.address[life] = head.addresses[addresses[life]];
        if (born < 0) this.before.push(life);
        else this.change[born] = life + 1;
        if (this.died[life] < this.events) this.change[this.died[life]] = -life - 1;
      }
      this.grouped = new Map();
      this.waiting = this.pending();
    }

    /* Bytes that were freed but waited for another stream, at each event where that changes; null if none did. */
    pending() {
      const changes = [];
      for (let life = 0; life < this.lives; life += 1) {
        if (this.died[life] >= this.events || this.waits[life] < 2) continue;
        changes.push([this.died[life], this.size[life]], [this.died[life] + this.waits[life], -this.size[life]]);
      }
      if (!changes.length) return null;
      changes.sort((left, right) => left[0] - right[0]);
      let sum = 0;
      return changes.map(([event, size]) => { sum += size; return [event, sum]; });
    }

    alive(event, keep) {
      const found = [];
      for (let life = 0; life < this.lives && this.born[life] <= event; life += 1) {
        if (this.died[life] > event && (!keep || keep(life))) found.push(life);
      }
      return found;
    }

    /* Sums by site after an event: [site, bytes, blocks, bytes by category]. */
    sites(event) {
      const sums = new Map();
      for (let life = 0; life < this.lives && this.born[life] <= event; life += 1) {
        if (this.died[life] <= event) continue;
        let row = sums.get(this.site[life]);
        if (!row) { row = { site: this.site[life], bytes: 0, blocks: 0, kinds: new Map() }; sums.set(row.site, row); }
        row.bytes += this.size[life];
        row.blocks += 1;
        const kind = this.category[life];
        row.kinds.set(kind, (row.kinds.get(kind) || 0) + this.size[life]);
      }
      const rows = [...sums.values()];
      for (const row of rows) {
        let most = -1;
        for (const [kind, size] of row.kinds) if (size > most) { most = size; row.category = this.head.categories[kind]; }
        row.name = this.head.sites[row.site];
      }
      return rows;
    }

    /* Blocks that were alive at some time between two events. */
    within(from, to, keep) {
      const found = [];
      for (let life = 0; life < this.lives && this.born[life] < to; life += 1) {
        if (this.died[life] > from && keep(life)) found.push(life);
      }
      return found;
    }

    reserved(event) {
      const [events, values] = this.head.reserved;
      let low = 0;
      let high = events.length;
      while (low < high) { const middle = (low + high) >> 1; if (events[middle] <= event) low = middle + 1; else high = middle; }
      return values[Math.max(low - 1, 0)];
    }

    time(event) {
      const [events, values] = this.head.times.length ? this.head.times : [[], []];
      if (!events.length) return null;
      let low = 0;
      let high = events.length - 1;
      while (high - low > 1) { const middle = (low + high) >> 1; if (events[middle] <= event) low = middle; else high = middle; }
      const part = events[high] > events[low] ? (Math.max(event, 0) - events[low]) / (events[high] - events[low]) : 0;
      return values[low] + Math.min(Math.max(part, 0), 1) * (values[high] - values[low]);
    }

    /* Where an event lies on the axis that runs have in common, and back. */
    place(event, bySteps) {
      if (!bySteps) return event / this.events;
      const ends = [0, ...this.head.steps.map((step) => step[1] + 1)];
      const at = Math.min(this.step(event - 1), ends.length - 2);
      return at + (event - ends[at]) / Math.max(ends[at + 1] - ends[at], 1);
    }

    event(place, bySteps) {
      if (!bySteps) return place * this.events;
      const ends = [0, ...this.head.steps.map((step) => step[1] + 1)];
      const at = Math.min(Math.max(Math.floor(place), 0), ends.length - 2);
      return Math.min(Math.max(ends[at] + (place - at) * (ends[at + 1] - ends[at]), 0), this.events);
    }

    step(event) {
      const steps = this.head.steps;
      let low = 0;
      let high = steps.length;
      while (low < high) { const middle = (low + high) >> 1; if (steps[middle][1] < event) low = middle + 1; else high = middle; }
      return low;
    }

    /* Groups of blocks by site, category or stream; sums are kept for each stretch of events. */
    groups(mode) {
      if (this.grouped.has(mode)) return this.grouped.get(mode);
      const { head } = this;
      let code;
      let names;
      if (mode === "category") { code = this.category; names = head.categories; }
      else if (mode === "stream") { code = this.stream; names = head.streams.map((stream) => "stream " + stream); }
      else if (mode === "pool") { code = this.pool; names = head.pools; }
      else if (mode === "step") {
        code = this.born.map((event) => (event < 0 ? 0 : this.step(event) + 1));
        names = ["before the window", ...head.steps.map((step, at) => "made in step " + at), "made after the last step"];
      }
      else { code = this.site; names = head.sites; }
      const weight = new Map();
      for (const row of this.alive(head.peak)) weight.set(code[row], (weight.get(code[row]) || 0) + this.size[row]);
      const ranked = mode === "category" ? names.map((_, at) => at)
        : [...weight.keys()].sort((left, right) => weight.get(right) - weight.get(left)).slice(0, GROUPS - 1);
      const place = new Map(ranked.map((value, at) => [value, at]));
      const labels = ranked.map((value) => names[value]);
      const other = labels.length;
      if (mode !== "category") labels.push("others");
      const k = labels.length;
      const of = new Uint8Array(this.lives);
      for (let life = 0; life < this.lives; life += 1) of[life] = place.has(code[life]) ? place.get(code[life]) : other;
      const chunks = Math.ceil(this.events / CHUNK) + 1;
      const start = new Float64Array(chunks * k);
      const fullest = new Float64Array(chunks * k);
      const when = new Int32Array(chunks);
      const total = new Float64Array(chunks);
      const sums = new Float64Array(k);
      for (const life of this.before) sums[of[life]] += this.size[life];
      let all = sums.reduce((left, right) => left + right, 0);
      for (let chunk = 0; chunk * CHUNK < this.events; chunk += 1) {
        start.set(sums, chunk * k);
        let most = -1;
        const end = Math.min((chunk + 1) * CHUNK, this.events);
        for (let event = chunk * CHUNK; event < end; event += 1) {
          const change = this.change[event];
          if (change > 0) { sums[of[change - 1]] += this.size[change - 1]; all += this.size[change - 1]; }
          else if (change < 0) { sums[of[-change - 1]] -= this.size[-change - 1]; all -= this.size[-change - 1]; }
          if (all > most) { most = all; when[chunk] = event; fullest.set(sums, chunk * k); }
        }
        total[chunk] = most;
      }
      const found = { labels, k, of, start, fullest, when, total, slots: this.slots(mode, labels) };
      this.grouped.set(mode, found);
      return found;
    }

    /* Which colour each group has: lines that another run beside this one has as well keep its colour. */
    slots(mode, labels) {
      const like = mode === "site" ? this.like || [] : [];
      const plain = (label) => label.replace(/:\d+ /, " ");
      const theirs = like.map(plain);
      const found = labels.map((label) => theirs.indexOf(plain(label)));
      const taken = new Set();
      found.forEach((slot, group) => { if (taken.has(slot)) found[group] = -1; taken.add(slot); });
      let next = 0;
      return found.map((slot) => {
        if (slot >= 0) return slot;
        while (taken.has(next)) next += 1;
        taken.add(next);
        return next;
      });
    }

    /* The fullest instant of each column between two events: sums by group, totals and events. */
    columns(groups, from, to, width) {
      const { k, of, start, fullest, when, total } = groups;
      const sums = new Float64Array(width * k);
      const totals = new Float64Array(width).fill(-1);
      const events = new Int32Array(width);
      const per = (to - from) / width;
      const first = Math.max(0, Math.floor(from));
      const last = Math.min(this.events - 1, Math.ceil(to));
      if (per >= CHUNK) {
        for (let chunk = Math.floor(first / CHUNK); chunk * CHUNK <= last; chunk += 1) {
          const column = Math.min(width - 1, Math.max(0, Math.floor((when[chunk] - from) / per)));
          if (total[chunk] > totals[column]) {
            totals[column] = total[chunk];
            events[column] = when[chunk];
            for (let group = 0; group < k; group += 1) sums[column * k + group] = fullest[chunk * k + group];
          }
        }
      } else {
        const chunk = Math.floor(first / CHUNK);
        const now = start.slice(chunk * k, chunk * k + k);
        let all = 0;
        for (let group = 0; group < k; group += 1) all += now[group];
        let column = -1;
        for (let event = chunk * CHUNK; event <= last; event += 1) {
          const change = this.change[event];
          if (change > 0) { now[of[change - 1]] += this.size[change - 1]; all += this.size[change - 1]; }
          else if (change < 0) { now[of[-change - 1]] -= this.size[-change - 1]; all -= this.size[-change - 1]; }
          if (event < first) continue;
          const here = Math.min(width - 1, Math.max(0, Math.floor((event - from) / per)));
          if (here !== column) column = here;
          if (all > totals[column]) {
            totals[column] = all;
            events[column] = event;
            const at = column * k;
            for (let group = 0; group < k; group += 1) sums[at + group] = now[group];
          }
        }
      }
      for (let column = 0; column < width; column += 1) {
        if (totals[column] >= 0) continue;
        if (column) {
          totals[column] = totals[column - 1];
          events[column] = events[column - 1];
          for (let group = 0; group < k; group += 1) sums[column * k + group] = sums[(column - 1) * k + group];
        } else totals[column] = 0;
      }
      return { sums, totals, events };
    }
  }

  /* One device's views, which share the cursor. */
  class Explorer {
    constructor(root, model) {
      this.root = root;
      this.model = model;
      this.mode = "site";
      this.from = 0;
      this.to = model.events;
      this.cursor = model.head.oom === null ? model.head.peak : model.head.oom;
      this.chosen = null;
      this.query = "";
      this.least = 0;
      this.order = ["bytes", -1];
      this.folded = true;
      this.weight = "bytes";
      this.linked = [];
      this.moved = () => {};
      this.build();
      this.restore();
      this.paint();
      new ResizeObserver(() => this.paint()).observe(root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
      addEventListener("hashchange", () => { if (this.restore()) this.paint(); });
    }

    build() {
      const { head } = this.model;
      const button = (text, action, title) => make("button", { type: "button", text, title, onclick: action });
      this.select = make("select", { "aria-label": "Colour by", onchange: () => { this.mode = this.select.value; this.paint(); } });
      for (const name of MODES) this.select.append(make("option", { value: name, text: name }));
      const jumps = make("span", { class: "jumps" });
      jumps.append(button("Peak", () => this.go(head.peak), "Go to the highest peak (p)"));
      if (head.oom !== null) jumps.append(button("Out of memory", () => this.go(head.oom), "Go to the last failure (o)"));
      jumps.append(button("End", () => this.go(head.end), "Go to the end (e)"));
      jumps.append(button("Whole window", () => this.look(0, this.model.events), "Show everything (0)"));
      jumps.append(button("+", () => this.zoom(0.5), "Zoom in (+)"), button("-", () => this.zoom(2), "Zoom out (-)"));
      this.canvas = make("canvas", { class: "timeline", tabindex: "0", role: "img", "aria-label":
        "Timeline of allocated memory. Arrow keys move the cursor, plus and minus zoom, p goes to the peak." });
      this.legend = make("p", { class: "legend" });
      this.status = make("p", { class: "status", role: "status", "aria-live": "polite" });
      this.tip = make("div", { class: "tip", hidden: "" });
      this.map = make("canvas", { class: "segments", role: "img", "aria-label": "Map of segments at the cursor" });
      this.icicle = make("canvas", { class: "icicle", role: "img", "aria-label": "Stacks of what is allocated at the cursor" });
      this.search = make("input", { type: "search", placeholder: "function or file", "aria-label": "Search sites",
        oninput: () => { this.query = this.search.value; this.fill(); this.store(); } });
      this.smallest = make("input", { type: "number", min: "0", step: "1", placeholder: "MiB", "aria-label": "At least so many MiB",
        oninput: () => { this.least = (Number(this.smallest.value) || 0) * 1048576; this.fill(); } });
      this.table = make("table", { class: "wide sites" });
      this.detail = make("div", { class: "detail", "aria-live": "polite" });
      const fold = make("input", { type: "checkbox", checked: "", onchange: () => { this.folded = fold.checked; this.paintIcicle(); } });
      const weight = make("select", { "aria-label": "Weigh stacks by", onchange: () => { this.weight = weight.value; this.paintIcicle(); } });
      const inner = make("input", { type: "checkbox", onchange: () => { this.inner = inner.checked; this.paintIcicle(); } });
      for (const name of ["bytes", "blocks", "bytes x time"]) weight.append(make("option", { value: name, text: name }));
      this.root.append(
        make("p", { class: "tools" }, make("label", { text: "Colour by " }, this.select), jumps),
        this.canvas, this.legend, this.status,
        make("div", { class: "panes" },
          make("div", {}, make("h4", { text: "Lines of code at the cursor" }),
            make("p", { class: "tools" }, this.search, this.smallest,
              button("Copy Markdown", () => this.copy("markdown")), button("Copy CSV", () => this.copy("csv"))),
            make("div", { class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Lines of code at the cursor" }, this.table),
            this.detail),
          make("div", {}, make("h4", { text: "Segments at the cursor" }), this.map,
            make("h4", { text: "Stacks at the cursor (bytes x time: over what the timeline shows)" }),
            make("p", { class: "tools" }, make("label", {}, fold, " fold frames of libraries"), make("label", {}, inner, " innermost call on top"),
              make("label", { text: "Weigh by " }, weight)),
            this.icicle)),
        this.tip);
      this.listen();
      this.root.hidden = false;
    }

    listen() {
      const { canvas } = this;
      let drag = null;
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / box.width);
        else this.zoom(Math.exp(event.deltaY * 0.002), (event.clientX - box.left) / box.width);
      }, { passive: false });
      const pointers = new Map();
      canvas.addEventListener("pointerdown", (event) => {
        pointers.set(event.pointerId, event.clientX);
        canvas.setPointerCapture(event.pointerId);
        drag = { x: event.clientX, from: this.from, to: this.to, moved: false, apart: this.apart(pointers) };
      });
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        if (!pointers.has(event.pointerId)) { this.hover(event.clientX - box.left, event.clientY - box.top, event); return; }
        pointers.set(event.pointerId, event.clientX);
        if (!drag) return;
        if (pointers.size > 1) {
          const apart = this.apart(pointers);
          if (drag.apart && apart) this.zoom(drag.apart / apart, 0.5);
          drag.apart = apart;
          drag.moved = true;
          return;
        }
        const shift = (event.clientX - drag.x) / box.width;
        if (Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
        if (drag.moved) this.look(drag.from - shift * (drag.to - drag.from), drag.to - shift * (drag.to - drag.from));
      });
      const up = (event) => {
        pointers.delete(event.pointerId);
        if (drag && !drag.moved && event.type === "pointerup") {
          const box = canvas.getBoundingClientRect();
          const column = this.column(event.clientX - box.left);
          if (column !== null) {
            this.cursor = this.drawn.events[column];
            const life = this.under(column, event.clientY - box.top);
            if (life !== null) this.chosen = this.model.site[life];
            this.paint();
            if (life !== null) this.explain(life);
          }
        }
        if (!pointers.size) drag = null;
      };
      canvas.addEventListener("pointerup", up);
      canvas.addEventListener("pointercancel", up);
      canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      canvas.addEventListener("keydown", (event) => {
        const head = this.model.head;
        const far = event.shiftKey ? Math.max(1, Math.round((this.to - this.from) / 20)) : 1;
        const actions = {
          ArrowLeft: () => this.go(this.cursor - far), ArrowRight: () => this.go(this.cursor + far),
          "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
          Home: () => this.go(0), End: () => this.go(head.end), 0: () => this.look(0, this.model.events),
          p: () => this.go(head.peak), o: () => { if (head.oom !== null) this.go(head.oom); }, e: () => this.go(head.end),
        };
        if (actions[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); actions[event.key](); }
      });
      for (const [view, find] of [[this.map, (x, y) => this.blockAt(x, y)], [this.icicle, (x, y) => this.frameAt(x, y)]]) {
        view.addEventListener("pointermove", (event) => {
          const box = view.getBoundingClientRect();
          this.show(find(event.clientX - box.left, event.clientY - box.top), event);
        });
        view.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      }
      this.map.addEventListener("click", (event) => {
        const box = this.map.getBoundingClientRect();
        const life = this.lifeAt(event.clientX - box.left, event.clientY - box.top);
        if (life !== null) { this.chosen = this.model.site[life]; this.fill(life); this.store(); }
      });
    }

    apart(pointers) {
      const places = [...pointers.values()];
      return places.length > 1 ? Math.abs(places[0] - places[1]) : 0;
    }

    /* ---- where one looks */

    look(from, to) {
      const all = this.model.events;
      const width = Math.min(Math.max(to - from, 16), Math.max(all, 16));
      this.from = Math.min(Math.max(from, 0), Math.max(all - width, 0));
      this.to = this.from + width;
      this.later();
      for (const other of this.linked) {
        other.from = other.model.event(this.model.place(this.from, this.steps), this.steps);
        other.to = Math.max(other.model.event(this.model.place(this.to, this.steps), this.steps), other.from + 1);
        other.later();
      }
    }

    /* Look at another run beside this one: a common axis along steps, or shares of the window, and a common height. */
    link(other) {
      this.steps = other.steps = this.model.head.steps.length > 1 && other.model.head.steps.length > 1;
      this.linked.push(other);
      other.linked.push(this);
      other.model.like = this.model.groups("site").labels;
      other.model.grouped.clear();
      other.paint();
    }

    zoom(factor, at) {
      const center = at === undefined ? Math.min(Math.max((this.cursor - this.from) / (this.to - this.from), 0), 1) : at;
      const fixed = this.from + center * (this.to - this.from);
      const width = Math.min(Math.max((this.to - this.from) * factor, 16), this.model.events);
      this.look(fixed - center * width, fixed + (1 - center) * width);
    }

    pan(share) { this.look(this.from + share * (this.to - this.from), this.to + share * (this.to - this.from)); }

    go(event) {
      this.cursor = Math.min(Math.max(Math.round(event), -1), this.model.events - 1);
      if (this.cursor < this.from || this.cursor > this.to) {
        const width = this.to - this.from;
        this.look(this.cursor - width / 2, this.cursor + width / 2);
      }
      this.paint();
    }

    later() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.paintTimeline();
        if (this.weight === "bytes x time") this.paintIcicle();
        this.store();
      });
    }

    /* The address of the view, for a ticket: #d0,e=event,v=from-to,g=mode,s=site,q=search. */
    store() {
      clearTimeout(this.saving);
      this.saving = setTimeout(() => {
        const parts = [this.key(), "e=" + this.cursor, "v=" + Math.round(this.from) + "-" + Math.round(this.to), "g=" + this.mode];
        if (this.chosen !== null) parts.push("s=" + this.chosen);
        if (this.query) parts.push("q=" + encodeURIComponent(this.query));
        try { history.replaceState(null, "", "#" + parts.join(",")); } catch (error) { /* Pages without an address. */ }
      }, 200);
    }

    key() { return (this.root.dataset.side || "d") + this.model.head.device; }

    restore() {
      const parts = location.hash.slice(1).split(",");
      if (parts[0] !== this.key()) return false;
      for (const part of parts.slice(1)) {
        const value = part.slice(2);
        if (part.startsWith("e=") && Number.isFinite(Number(value))) this.cursor = Math.min(Math.max(Number(value), -1), this.model.events - 1);
        if (part.startsWith("g=") && MODES.includes(value)) { this.mode = value; this.select.value = value; }
        if (part.startsWith("s=") && this.model.head.sites[Number(value)] !== undefined) this.chosen = Number(value);
        if (part.startsWith("q=")) { try { this.query = decodeURIComponent(value); } catch (error) { this.query = ""; } this.search.value = this.query; }
        if (part.startsWith("v=")) {
          const [from, to] = value.split("-").map(Number);
          if (to > from) { this.from = Math.max(0, from); this.to = Math.min(to, this.model.events); }
        }
      }
      return true;
    }

    /* ---- pictures */

    colours() {
      const style = getComputedStyle(document.documentElement);
      const get = (name) => style.getPropertyValue(name).trim();
      const bands = [];
      for (let at = 0; at < 8; at += 1) bands.push(get("--c" + at));
      return { bands, other: get("--cx"), ink: getComputedStyle(document.body).color, line: get("--line"),
        paper: get("--paper"), active: get("--active"), bad: get("--bad") };
    }

    colour(group, groups) {
      if (this.mode !== "category" && group === groups.k - 1) return this.paints.other;
      return this.paints.bands[groups.slots[group] % this.paints.bands.length];
    }

    prepare(canvas, height) {
      const ratio = devicePixelRatio || 1;
      const width = Math.max(canvas.clientWidth, 50);
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.height = height + "px";
      }
      const draw = canvas.getContext("2d");
      draw.setTransform(ratio, 0, 0, ratio, 0, 0);
      draw.clearRect(0, 0, width, height);
      draw.font = "11px system-ui, sans-serif";
      return [draw, width];
    }

    paint() {
      this.paints = this.colours();
      this.paintTimeline();
      this.paintMap();
      this.paintIcicle();
      this.fill();
      this.store();
      this.moved();
    }

    paintTimeline() {
      const { model } = this;
      const height = 260;
      const foot = 18;
      const [draw, width] = this.prepare(this.canvas, height);
      const groups = model.groups(this.mode);
      const pixels = Math.floor(width);
      const found = model.columns(groups, this.from, this.to, pixels);
      this.drawn = { ...found, pixels, height, foot, groups };
      let top = 1;
      for (let column = 0; column < pixels; column += 1) top = Math.max(top, found.totals[column]);
      const [marks, levels] = model.head.reserved;
      let most = model.reserved(this.from);
      for (let at = 0; at < marks.length; at += 1) if (marks[at] >= this.from && marks[at] <= this.to) most = Math.max(most, levels[at]);
      top = Math.max(top, most) * 1.08;
      this.height = top;
      for (const other of this.linked) {
        if (other.height === undefined) continue;
        if (other.height < top && other.shared !== top) { other.shared = top; other.later(); }
        top = Math.max(top, other.height);
      }
      this.drawn.top = top;
      const room = height - foot;
      const y = (value) => room - (value / top) * room;
      const base = new Float64Array(pixels);
      for (let group = 0; group < groups.k; group += 1) {
        draw.fillStyle = this.colour(group, groups);
        draw.beginPath();
        draw.moveTo(0, y(base[0]));
        for (let column = 0; column < pixels; column += 1) {
          const high = y(base[column] + found.sums[column * groups.k + group]);
          draw.lineTo(column, high);
          draw.lineTo(column + 1, high);
        }
        for (let column = pixels - 1; column >= 0; column -= 1) {
          const low = y(base[column]);
          draw.lineTo(column + 1, low);
          draw.lineTo(column, low);
          base[column] += found.sums[column * groups.k + group];
        }
        draw.fill();
      }
      const x = (event) => ((event - this.from) / (this.to - this.from)) * pixels;
      draw.strokeStyle = this.paints.ink;
      draw.lineWidth = 1.5;
      draw.beginPath();
      let level = model.reserved(this.from);
      draw.moveTo(0, y(level));
      for (let at = 0; at < marks.length; at += 1) {
        if (marks[at] < this.from || marks[at] > this.to) continue;
        draw.lineTo(x(marks[at]), y(level));
        level = levels[at];
        draw.lineTo(x(marks[at]), y(level));
      }
      draw.lineTo(pixels, y(level));
      draw.stroke();
      this.active(draw, pixels, y, x);
      this.axis(draw, pixels, room, top, y, x);
      this.describe(groups);
    }

    /* What is active beyond allocated: blocks that wait for another stream, as a line above the bands. */
    active(draw, pixels, y, x) {
      const { waiting } = this.model;
      if (!waiting) return;
      draw.strokeStyle = this.paints.active;
      draw.beginPath();
      let at = 0;
      let now = 0;
      for (let column = 0; column < pixels; column += 1) {
        const event = this.drawn.events[column];
        while (at < waiting.length && waiting[at][0] <= event) { now = waiting[at][1]; at += 1; }
        draw.lineTo(column, y(this.drawn.totals[column] + now));
      }
      draw.stroke();
    }

    axis(draw, pixels, room, top, y, x) {
      const { head } = this.model;
      draw.strokeStyle = this.paints.line;
      draw.fillStyle = this.paints.ink;
      draw.lineWidth = 1;
      draw.textBaseline = "top";
      const power = Math.pow(2, Math.floor(Math.log2(top / 3)));
      for (let value = power; value < top; value += power) this.label(draw, bytes(value), 3, y(value) + 1);
      const inside = head.steps.filter((step) => step[1] >= this.from && step[1] <= this.to);
      if (inside.length <= 60) {
        for (const [name, end] of inside) {
          draw.beginPath(); draw.moveTo(x(end), 0); draw.lineTo(x(end), room); draw.stroke();
          if (inside.length <= 12 && x(end) > 190 && x(end) < pixels - 60) draw.fillText(name.slice(0, 20), x(end) - 110, room + 4);
        }
      }
      draw.fillText("event " + count(Math.max(this.from, 0)), 2, room + 4);
      const right = count(Math.min(this.to, this.model.events));
      draw.fillText(right, pixels - draw.measureText(right).width - 2, room + 4);
      const lanes = head.annotations.filter((one) => one[2] >= this.from && one[1] <= this.to);
      if (lanes.length <= 120) {
        draw.globalAlpha = 0.75;
        lanes.forEach(([name, first, last], at) => {
          const left = Math.max(x(first), 0);
          const right = Math.min(x(last), pixels);
          draw.fillStyle = this.paints.bands[this.hash(name) % 8];
          draw.fillRect(left, room - 5, Math.max(right - left - 1, 1), 5);
          draw.fillStyle = this.paints.ink;
          if (right - left > draw.measureText(name).width + 4) this.label(draw, name, left + 2, room - 19);
        });
        draw.globalAlpha = 1;
      }
      let line = 0;
      for (const [event, name, bad] of head.marks) {
        if (event < this.from || event > this.to) continue;
        draw.strokeStyle = bad ? this.paints.bad : this.paints.ink;
        draw.setLineDash([4, 3]);
        draw.beginPath(); draw.moveTo(x(event), 0); draw.lineTo(x(event), room); draw.stroke();
        draw.setLineDash([]);
        draw.fillStyle = bad ? this.paints.bad : this.paints.ink;
        this.label(draw, name, Math.min(x(event) + 3, pixels - draw.measureText(name).width - 3), 2 + 13 * (line % 2));
        line += 1;
      }
      if (this.cursor >= this.from && this.cursor <= this.to) {
        draw.strokeStyle = this.paints.ink;
        draw.lineWidth = 2;
        draw.beginPath(); draw.moveTo(x(this.cursor), 0); draw.lineTo(x(this.cursor), room); draw.stroke();
      }
    }

    /* Text that can be read on any band. */
    label(draw, text, x, y) {
      draw.save();
      draw.strokeStyle = this.paints.paper;
      draw.lineWidth = 3;
      draw.lineJoin = "round";
      draw.strokeText(text, x, y);
      draw.restore();
      draw.fillText(text, x, y);
    }

    describe(groups) {
      const key = groups.labels.map((label, group) => make("span", {}, make("i", { style: "background:" + this.colour(group, groups) }), " " + label));
      key.push(make("span", {}, make("i", { class: "line" }), " reserved"));
      if (this.model.waiting) key.push(make("span", {}, make("i", { class: "line", style: "color:" + this.paints.active }), " active"));
      this.legend.replaceChildren(...key);
    }

    column(x) {
      if (!this.drawn) return null;
      return Math.min(Math.max(Math.floor(x), 0), this.drawn.pixels - 1);
    }

    /* The group at a height of a column, the bytes below it, and those of it. */
    band(column, y) {
      const { sums, groups, height, foot, top } = this.drawn;
      const value = ((height - foot - y) / (height - foot)) * top;
      let below = 0;
      for (let group = 0; group < groups.k; group += 1) {
        const size = sums[column * groups.k + group];
        if (value >= below && value < below + size) return { group, size, inside: value - below };
        below += size;
      }
      return null;
    }

    /* The block under the pointer: within a band blocks lie in the order in which they were made. */
    under(column, y) {
      const band = this.band(column, y);
      if (!band) return null;
      const { groups, events } = this.drawn;
      let left = band.inside;
      for (const life of this.model.alive(events[column], (one) => groups.of[one] === band.group)) {
        left -= this.model.size[life];
        if (left < 0) return life;
      }
      return null;
    }

    hover(x, y, event) {
      const column = this.column(x);
      if (column === null) return;
      const { sums, events, groups } = this.drawn;
      const band = this.band(column, y);
      const life = this.under(column, y);
      let text = band ? groups.labels[band.group] + ": " + bytes(band.size) : "";
      if (life !== null) text += "\nblock of " + this.block(life, events[column]).slice(0, 2).join(", ");
      let below = 0;
      for (let group = 0; group < groups.k; group += 1) below += sums[column * groups.k + group];
      const time = this.model.time(events[column]);
      const when = "event " + count(events[column]) + (time === null ? "" : ", " + time.toFixed(1) + " ms");
      this.show((text ? text + "\n" : "") + bytes(below) + " allocated, " + bytes(this.model.reserved(events[column])) + " reserved\n" + when, event);
    }

    show(text, event) {
      this.tip.hidden = !text;
      if (!text) return;
      this.tip.textContent = text;
      const box = this.root.getBoundingClientRect();
      const left = Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4);
      this.tip.style.left = Math.max(0, left) + "px";
      this.tip.style.top = event.clientY - box.top + 16 + "px";
    }

    /* ---- the map */

    paintMap() {
      const { model, cursor } = this;
      const groups = model.groups(this.mode);
      const segments = model.head.segments.filter((one) => one[2] <= cursor && one[3] > cursor).sort((left, right) => left[0] - right[0]);
      const shown = segments.length > 160 ? [...segments].sort((left, right) => right[1] - left[1]).slice(0, 160).sort((left, right) => left[0] - right[0]) : segments;
      const row = shown.length > 60 ? 4 : shown.length > 24 ? 8 : 14;
      const height = Math.max(40, shown.length * (row + 1) + 16);
      const [draw, width] = this.prepare(this.map, height);
      const widest = shown.reduce((most, one) => Math.max(most, one[1]), 1);
      const starts = shown.map((one) => one[0]);
      this.mapped = { shown, row, width, widest, lives: [] };
      draw.fillStyle = this.paints.line;
      shown.forEach((one, at) => draw.fillRect(0, at * (row + 1), Math.max(1, (one[1] / widest) * width), row));
      draw.fillStyle = this.paints.active;
      shown.forEach((one, at) => { if (one[4]) draw.fillRect(Math.min((one[1] / widest) * width, width - 4), at * (row + 1), 4, row); });
      for (const life of model.alive(cursor)) {
        const address = model.address[life];
        let low = 0;
        let high = starts.length;
        while (low < high) { const middle = (low + high) >> 1; if (starts[middle] <= address) low = middle + 1; else high = middle; }
        const at = low - 1;
        if (at < 0 || address >= shown[at][0] + shown[at][1]) continue;
        const left = ((address - shown[at][0]) / widest) * width;
        const wide = Math.max(0.5, (model.size[life] / widest) * width);
        draw.fillStyle = this.colour(groups.of[life], groups);
        draw.globalAlpha = this.chosen === null || model.site[life] === this.chosen ? 1 : 0.3;
        draw.fillRect(left, at * (row + 1), wide > 2 ? wide - 0.5 : wide, row);
        this.mapped.lives.push([at, left, left + wide, life]);
      }
      draw.globalAlpha = 1;
      draw.fillStyle = this.paints.ink;
      draw.textBaseline = "top";
      const left = segments.length - shown.length;
      draw.fillText(count(segments.length) + " segments" + (left ? ", the largest " + count(shown.length) + " drawn" : "") + "; grey is free" + (shown.some((one) => one[4]) ? ", marked ends are private pools" : ""), 2, height - 13);
    }

    lifeAt(x, y) {
      if (!this.mapped) return null;
      const at = Math.floor(y / (this.mapped.row + 1));
      const hit = this.mapped.lives.find((one) => one[0] === at && x >= one[1] - 1 && x <= one[2] + 1);
      return hit ? hit[3] : null;
    }

    blockAt(x, y) {
      const life = this.lifeAt(x, y);
      if (life !== null) return this.block(life).join("\n");
      const segment = this.mapped && this.mapped.shown[Math.floor(y / (this.mapped.row + 1))];
      if (!segment || x > (segment[1] / this.mapped.widest) * this.mapped.width) return "";
      return "free, in a segment of " + bytes(segment[1]) + (segment[5] ? " (small pool)" : "") + (segment[4] ? ", a private pool" : "") + ", stream " + segment[6];
    }

    block(life, at) {
      const { model } = this;
      const now = at === undefined ? this.cursor : at;
      const age = now - Math.max(model.born[life], -1);
      const steps = model.head.steps.length ? model.step(now) - model.step(Math.max(model.born[life], 0)) : null;
      const end = model.died[life] < model.events ? "freed at event " + count(model.died[life]) : "alive at the end";
      const begin = model.born[life] < 0 ? "from before the window" : "made at event " + count(model.born[life]) + ", " + count(age) + " events ago";
      return [bytes(model.size[life]) + ", " + model.head.sites[model.site[life]],
        begin + (steps ? ", " + steps + (steps === 1 ? " step" : " steps") : ""), end + ", " + model.head.categories[model.category[life]]];
    }

    /* ---- stacks */

    paintIcicle() {
      const { model, cursor } = this;
      const root = { name: "all", value: 0, children: new Map() };
      const over = this.weight === "bytes x time";
      const wanted = (life) => this.chosen === null || model.site[life] === this.chosen;
      const lives = over ? model.within(this.from, this.to, wanted) : model.alive(cursor, wanted);
      for (const life of lives) {
        const spent = over ? Math.min(model.died[life], this.to) - Math.max(model.born[life], this.from) : 1;
        const weight = this.weight === "blocks" ? 1 : model.size[life] * spent;
        root.value += weight;
        let node = root;
        const stack = model.stack[life] < 0 ? [] : model.head.stacks[model.stack[life]];
        let any = false;
        for (let at = 0; at < stack.length; at += 1) {
          const [name, library] = model.head.frames[stack[this.inner ? at : stack.length - 1 - at]];
          if (this.folded && library) continue;
          any = true;
          node = this.child(node, name, weight);
        }
        if (!any) this.child(node, stack.length ? "(libraries only)" : model.head.sites[model.site[life]], weight);
      }
      const deep = (node) => Math.max(0, ...[...node.children.values()].map((one) => 1 + deep(one)));
      const row = 18;
      const depth = Math.min(deep(root), 40);
      const [draw, width] = this.prepare(this.icicle, (depth + 1) * row);
      this.frames = [];
      const paint = (node, left, level, wide) => {
        if (wide < 0.7 || level > depth) return;
        this.frames.push([left, left + wide, level, node, root.value]);
        draw.fillStyle = level ? this.paints.bands[this.hash(node.name) % 8] : this.paints.line;
        draw.fillRect(left, level * row, Math.max(wide - 0.7, 0.5), row - 1);
        if (wide > 34) {
          draw.fillStyle = level ? "#fff" : this.paints.ink;
          draw.textBaseline = "middle";
          const name = node.name.split("/").pop();
          const fits = Math.floor((wide - 6) / 6);
          draw.fillText(name.length > fits ? name.slice(0, Math.max(fits - 1, 1)) + "…" : name, left + 3, level * row + row / 2);
        }
        let at = left;
        for (const one of [...node.children.values()].sort((first, second) => second.value - first.value)) {
          const part = root.value ? (one.value / root.value) * width : 0;
          paint(one, at, level + 1, part);
          at += part;
        }
      };
      paint(root, 0, 0, width);
    }

    child(node, name, weight) {
      let next = node.children.get(name);
      if (!next) { next = { name, value: 0, children: new Map() }; node.children.set(name, next); }
      next.value += weight;
      return next;
    }

    hash(text) {
      let value = 7;
      for (let at = 0; at < text.length; at += 1) value = (value * 31 + text.charCodeAt(at)) >>> 0;
      return value;
    }

    frameAt(x, y) {
      const level = Math.floor(y / 18);
      const hit = (this.frames || []).find((one) => one[2] === level && x >= one[0] && x < one[1]);
      if (!hit) return "";
      const [, , , node, total] = hit;
      const value = this.weight === "blocks" ? count(node.value) + " blocks" : this.weight === "bytes" ? bytes(node.value) : "";
      return node.name + "\n" + (value ? value + ", " : "") + ((100 * node.value) / (total || 1)).toFixed(1) + "%";
    }

    /* ---- the table */

    rows() {
      const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
      const [key, sign] = this.order;
      return this.model.sites(this.cursor)
        .filter((row) => row.bytes >= this.least && words.every((word) => row.name.toLowerCase().includes(word)))
        .sort((left, right) => {
          const order = typeof left[key] === "string" ? left[key].localeCompare(right[key]) : left[key] - right[key];
          return sign * order || right.bytes - left.bytes;
        });
    }

    fill(life) {
      const { model, cursor } = this;
      const all = model.sites(cursor);
      const total = all.reduce((sum, row) => sum + row.bytes, 0);
      const time = model.time(cursor);
      const step = model.head.steps.length ? model.step(cursor) : null;
      this.status.textContent = (cursor < 0 ? "Before the first event" : "After event " + count(cursor)) + (time === null || cursor < 0 ? "" : " (" + time.toFixed(1) + " ms)")
        + (step === null ? "" : step < model.head.steps.length ? ", in " + model.head.steps[step][0] : ", after the last step")
        + ": " + bytes(total) + " allocated in " + count(all.reduce((sum, row) => sum + row.blocks, 0)) + " blocks, " + bytes(model.reserved(cursor)) + " reserved.";
      const heads = [["bytes", "bytes"], ["blocks", "blocks"], ["category", "mostly"], ["name", "site"]];
      const header = make("tr");
      for (const [key, text] of heads) {
        const sorted = this.order[0] === key ? (this.order[1] < 0 ? "descending" : "ascending") : "none";
        header.append(make("th", { scope: "col", "aria-sort": sorted, class: key === "bytes" || key === "blocks" ? "n" : "" },
          make("button", { type: "button", class: "sort", text: text + (sorted === "none" ? "" : sorted === "descending" ? " ↓" : " ↑"), onclick: () => {
            this.order = [key, this.order[0] === key ? -this.order[1] : key === "bytes" || key === "blocks" ? -1 : 1];
            this.fill();
          } })));
      }
      const rows = this.rows();
      const body = make("tbody");
      for (const row of rows.slice(0, 300)) {
        const pick = () => { this.chosen = this.chosen === row.site ? null : row.site; this.paintMap(); this.paintIcicle(); this.fill(); this.store(); };
        body.append(make("tr", { class: this.chosen === row.site ? "chosen" : "", onclick: pick },
          make("td", { class: "n", text: bytes(row.bytes), title: count(row.bytes) + " bytes" }), make("td", { class: "n", text: count(row.blocks) }),
          make("td", { class: "word", text: row.category }), make("td", { class: "site" }, make("button", { type: "button", class: "pick", "aria-pressed": String(this.chosen === row.site), text: row.name }))));
      }
      const shown = rows.reduce((sum, row) => sum + row.bytes, 0);
      const foot = make("tfoot");
      if (shown !== total) foot.append(make("tr", {}, make("td", { class: "n", text: bytes(total - shown) }), make("td"), make("td"), make("td", { text: "filtered out" })));
      foot.append(make("tr", { class: "total" }, make("td", { class: "n", text: bytes(total) }), make("td"), make("td"), make("td", { text: "allocated in all" })));
      this.table.replaceChildren(make("thead", {}, header), body, foot);
      this.explain(life);
    }

    explain(life) {
      const { model, cursor } = this;
      if (this.chosen === null) { this.detail.replaceChildren(); return; }
      const blocks = model.alive(cursor, (one) => model.site[one] === this.chosen).sort((left, right) => model.size[right] - model.size[left]);
      const first = life !== undefined ? life : blocks[0];
      const parts = [make("h4", { text: model.head.sites[this.chosen] })];
      if (first === undefined) parts.push(make("p", { text: "Nothing of this line is alive at the cursor." }));
      else {
        const lines = (stack) => (stack < 0 ? ["(no stack)"] : model.head.stacks[stack].map((frame) => model.head.frames[frame][0]));
        let text = this.block(first).join("\n") + "\n" + this.neighbours(first).join("\n") + "\n\n" + lines(model.stack[first]).join("\n");
        if (model.died[first] < model.events) text += "\n\nfreed by\n" + lines(model.freed_by[first]).join("\n");
        parts.push(make("pre", { text }));
        const list = make("ul", { class: "blocks" });
        for (const one of blocks.slice(0, 12)) list.append(make("li", { text: this.block(one).slice(0, 2).join("; ").replace(", " + model.head.sites[this.chosen], "") }));
        if (blocks.length > 12) list.append(make("li", { text: count(blocks.length - 12) + " more" }));
        parts.push(list);
      }
      this.detail.replaceChildren(...parts);
    }

    /* What lies directly below and above a block in its segment. */
    neighbours(life) {
      const { model, cursor } = this;
      const start = model.address[life];
      const end = start + model.size[life];
      const segment = model.head.segments.find((one) => one[2] <= cursor && one[3] > cursor && one[0] <= start && one[0] + one[1] >= end);
      if (!segment) return [];
      let low = segment[0];
      let high = segment[0] + segment[1];
      let below = null;
      let above = null;
      for (const one of model.alive(cursor)) {
        const first = model.address[one];
        const last = first + model.size[one];
        if (last <= start && last > low) { low = last; below = one; }
        if (first >= end && first < high) { high = first; above = one; }
      }
      const name = (one, gap) => (gap > 0 ? bytes(gap) + " free" : one === null ? "the segment's edge" : model.head.sites[model.site[one]] + ", " + bytes(model.size[one]));
      return ["in a segment of " + bytes(segment[1]) + (segment[4] ? " of a private pool" : ""), "below it: " + name(below, start - low), "above it: " + name(above, high - end)];
    }

    copy(kind) {
      const rows = this.rows();
      const quote = (text) => '"' + String(text).replace(/"/g, '""') + '"';
      const plain = (text) => String(text).replace(/[\\|`*_<>]/g, "\\$&");
      const text = kind === "csv"
        ? ["bytes,blocks,category,site", ...rows.map((row) => [row.bytes, row.blocks, quote(row.category), quote(row.name)].join(","))].join("\n")
        : ["| bytes | blocks | category | site |", "| ---: | ---: | --- | --- |", ...rows.map((row) => "| " + [bytes(row.bytes), count(row.blocks), row.category, plain(row.name)].join(" | ") + " |")].join("\n");
      const area = make("textarea", { class: "copied", "aria-label": "Copied text" });
      area.value = text;
      this.detail.replaceChildren(area);
      area.select();
      if (navigator.clipboard) navigator.clipboard.writeText(text).catch(() => document.execCommand("copy"));
      else document.execCommand("copy");
    }
  }

  /* Stacks of two runs at their cursors: what grew is red, what shrank is blue. */
  class Difference {
    constructor(root, base, other) {
      this.root = root;
      this.sides = [base, other];
      this.canvas = make("canvas", { class: "icicle", role: "img", "aria-label": "Difference of stacks: red grew, blue shrank" });
      this.tip = make("div", { class: "tip", hidden: "" });
      root.append(make("p", { class: "note", text: "Each at its own cursor, the line that allocates on top, its callers below; as wide as the larger of the two. Red grew, blue shrank." }), this.canvas, this.tip);
      this.canvas.addEventListener("pointermove", (event) => this.hover(event));
      this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      for (const side of this.sides) side.moved = () => this.paint();
      root.hidden = false;
      this.paint();
      new ResizeObserver(() => this.paint()).observe(root);
    }

    tree() {
      const root = { name: "all", sizes: [0, 0], children: new Map() };
      this.sides.forEach(({ model, cursor }, side) => {
        for (const life of model.alive(cursor)) {
          const size = model.size[life];
          root.sizes[side] += size;
          let node = root;
          const stack = model.stack[life] < 0 ? [] : model.head.stacks[model.stack[life]];
          const names = stack.map((frame) => model.head.frames[frame]).filter((frame) => !frame[1]).map((frame) => frame[0]);
          // Lines move when a program is edited.
          const plain = names.length ? names.map((name) => name.split("/").pop().replace(/:\d+ /, " ")) : [model.head.sites[model.site[life]].replace(/:\d+ /, " ")];
          for (const name of plain) {
            let next = node.children.get(name);
            if (!next) { next = { name, sizes: [0, 0], children: new Map() }; node.children.set(name, next); }
            next.sizes[side] += size;
            node = next;
          }
        }
      });
      const measure = (node) => {
        let inner = 0;
        for (const one of node.children.values()) inner += measure(one);
        node.width = Math.max(inner, ...node.sizes);
        return node.width;
      };
      measure(root);
      return root;
    }

    paint() {
      const root = this.tree();
      const row = 20;
      const deep = (node) => Math.max(0, ...[...node.children.values()].map((one) => 1 + deep(one)));
      const depth = Math.min(deep(root), 40);
      const [draw, width] = this.sides[1].prepare(this.canvas, (depth + 1) * row);
      const paints = this.sides[1].colours();
      this.frames = [];
      const paint = (node, left, level, wide) => {
        if (wide < 0.7 || level > depth) return;
        this.frames.push([left, left + wide, level, node]);
        const delta = node.sizes[1] - node.sizes[0];
        draw.fillStyle = paints.line;
        draw.fillRect(left, level * row, Math.max(wide - 0.7, 0.5), row - 1);
        draw.fillStyle = delta > 0 ? paints.bad : paints.bands[0];
        draw.globalAlpha = Math.min(Math.abs(delta) / Math.max(...node.sizes, 1), 1);
        draw.fillRect(left, level * row, Math.max(wide - 0.7, 0.5), row - 1);
        draw.globalAlpha = 1;
        if (wide > 40) {
          draw.fillStyle = paints.ink;
          draw.textBaseline = "middle";
          const text = node.name + " " + (delta > 0 ? "+" : "") + bytes(delta);
          const fits = Math.floor((wide - 6) / 6);
          this.sides[1].paints.paper = paints.paper;
          this.sides[1].label(draw, text.length > fits ? text.slice(0, Math.max(fits - 1, 1)) + "…" : text, left + 3, level * row + row / 2);
        }
        let at = left;
        for (const one of [...node.children.values()].sort((first, second) => second.width - first.width)) {
          const part = node.width ? (one.width / node.width) * wide : 0;
          paint(one, at, level + 1, part);
          at += part;
        }
      };
      paint(root, 0, 0, width);
      this.whole = root;
    }

    hover(event) {
      const box = this.canvas.getBoundingClientRect();
      const x = event.clientX - box.left;
      const level = Math.floor((event.clientY - box.top) / 20);
      const hit = this.frames.find((one) => one[2] === level && x >= one[0] && x < one[1]);
      this.tip.hidden = !hit;
      if (!hit) return;
      const [before, after] = hit[3].sizes;
      this.tip.textContent = hit[3].name + "\n" + bytes(before) + " to " + bytes(after) + ", " + (after > before ? "+" : "") + bytes(after - before);
      const outer = this.root.getBoundingClientRect();
      this.tip.style.left = Math.max(0, Math.min(event.clientX - outer.left + 14, outer.width - this.tip.offsetWidth - 4)) + "px";
      this.tip.style.top = event.clientY - outer.top + 16 + "px";
    }
  }

  const start = async () => {
    for (const root of document.querySelectorAll(".explorer")) {
      const data = root.querySelector("script[type='text/plain']");
      try {
        root.explorer = new Explorer(root, await unpack(data.textContent.trim()));
        data.remove();
        root.dataset.ready = "yes";
      } catch (error) {
        root.hidden = true;
        root.dataset.ready = "no";
        console.error(error);
      }
    }
    const sides = [...document.querySelectorAll(".explorer.side")].map((root) => root.explorer).filter(Boolean);
    const difference = document.querySelector(".difference");
    if (difference && sides.length === 2) {
      sides[0].link(sides[1]);
      sides[0].look(0, sides[0].model.events);
      difference.explorer = new Difference(difference, ...sides);
      difference.dataset.ready = "yes";
    }
  };
  start();
})();
