"""Tables of a shape's results. Standard library only."""
import statistics

LIKE = "compile-deterministic"  # the way that deterministic Espalier is compared with


COLUMNS = [  # title, width, key of a row, format
    ("tokens/s", 10, "tokens_per_s", ".0f"), ("ms a step", 10, "step_ms", ".1f"),
    ("/ compile", 9, "over_compile", ".2f"), ("/ comp.-det.", 12, "over_deterministic", ".2f"),
    ("MFU causal", 10, "mfu_causal", ".1%"),
    ("MFU full", 8, "mfu_full", ".1%"), ("/ products", 10, "of_products", ".2f"), ("micro", 6, "micro", "d")
]


def rows(shape, results, peak):
    """The TFLOP/s of the bare GEMMs, or None, and a row for every way that ran. `peak` in TFLOP/s, or None."""
    flops, bare = shape.plan["flops_per_token"], statistics.median(results.products) if results.products else None
    rates = {way: 1e3 * shape.tokens() / statistics.median(ms) for way, ms in results.ms.items() if ms}
    found = []
    for way, rate in rates.items():
        causal, full = (1e-12 * flops[kind] * rate for kind in ("causal", "full"))
        found.append({
            "way": way, "tokens_per_s": rate, "over_compile": rate / rates["compile"] if "compile" in rates else None,
            "over_deterministic": rate / rates[LIKE] if LIKE in rates else None, "gpu": results.said[way]["gpu"],
            "mfu_causal": causal / peak if peak else None, "mfu_full": full / peak if peak else None,
            "of_products": causal / bare if bare else None, "ms": results.ms[way],
            "micro": results.said[way].get("micro", shape.micro)
        })
    return bare, found


def text(value, form):
    return format(value, form) if value is not None else "-"


def show(shape, results, peak):
    """Prints the table and returns its content."""
    bare, found = rows(shape, results, peak)
    print(f"{'':<22}" + "".join(f" {title:>{width}}" for title, width, _, _ in COLUMNS))
    for r in found:
        r = dict(r, step_ms=statistics.median(r["ms"]))
        print(f"{r['way']:<22}" + "".join(f" {text(r[key], form):>{width}}" for _, width, key, form in COLUMNS))
    for way, reason in results.failed.items():
        print(f"{way:<22} failed: {reason}")
    if bare:
        print(f"bare products in {results.products_type}: {bare:.1f} TFLOP/s" +
              (f", {bare / peak:.1%} of the datasheet's {peak}" if peak else ""))
    parts(shape, results, found, bare)
    kinds = by_kind(results.times) if results.times else []
    show_kinds(results.times, kinds)
    return {
        "shape": shape.name, "layers": shape.layers, "micro": shape.micro, "tokens_per_step": shape.tokens(),
        "planned_peak_bytes": shape.plan["peak_bytes"], "products_tflops": results.products,
        "products_type": results.products_type, "rows": found,
        "failed": results.failed, "instruction_kinds": kinds
    }


def parts(shape, results, found, bare):
    """How Espalier's step time is divided, as far as metrics.jsonl tells, and how long its GEMMs alone would take."""
    for way in (r["way"] for r in found if r["way"].startswith("espalier")):
        steps = results.said[way]["steps"]
        ms = {
            key: statistics.median(s[key] for s in steps)
            for key in ("compute_ms", "exposed_comm_ms", "idle_ms", "data_ms")
        }
        print(f"{way}, ms of a step: " + ", ".join(f"{key[:-3].replace('_', ' ')} {value:.1f}"
                                                   for key, value in ms.items()) +
              (f"; its products alone at the bare rate: {shape.product_flops() / bare / 1e9:.1f}" if bare else ""))


def by_kind(times):
    """A row for every kind of instruction on the compute lane, the longest first, and one for the remaining time."""
    rows = {}
    for row in (r for r in times["instructions"] if r["lane"] == "compute"):
        total = rows.setdefault(row["kind"], {"kind": row["kind"], "count": 0, "seconds": 0, "flops": 0, "bytes": 0})
        for key in ("count", "seconds", "flops", "bytes"):
            total[key] += row[key]
    found = sorted(rows.values(), key=lambda row: -row["seconds"])
    rest = times["wall_s"] - sum(row["seconds"] for row in found)
    return [
        dict(row, share=row["seconds"] / times["wall_s"])
        for row in [*found, {"kind": "(between them)", "count": 0, "seconds": rest, "flops": 0, "bytes": 0}]
    ]


def rate(row):
    """FLOP/s of GEMMs and attention; bytes/s of memory-bound kernels."""
    if not row["seconds"]:
        return "-"
    if row["flops"]:
        return f"{1e-12 * row['flops'] / row['seconds']:.2f} TFLOP/s"
    return f"{1e-9 * row['bytes'] / row['seconds']:.1f} GB/s" if row["bytes"] else "-"


def show_kinds(times, kinds):
    if not kinds:
        return
    print(f"a step of {1e3 * times['wall_s']:.1f} ms, issued with a clock on every instruction:")
    print(f"{'':<24} {'share':>6} {'ms':>9} {'count':>6} {'rate':>16}")
    for row in kinds:
        print(f"{row['kind']:<24} {row['share']:>6.1%} {1e3 * row['seconds']:>9.3f} {row['count']:>6} {rate(row):>16}")
