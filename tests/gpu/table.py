"""Rows, budget and comparisons of check.py: all that needs neither a GPU nor a framework."""
import json
import time

BAD = ("different", "failed", "hang", "died", "timeout")


class Budget:
    """Seconds for the whole check. A step is granted what it wants or what is left, and nothing when that is too little."""

    LEAST_S = 3.0

    def __init__(self, total_s, clock=time.monotonic):
        self.clock, self.end, self.start = clock, clock() + total_s, clock()

    def left(self):
        return max(0.0, self.end - self.clock())

    def spent(self):
        return self.clock() - self.start

    def grant(self, want_s):
        left = self.left()
        return None if left < self.LEAST_S else min(want_s, left)


class Table:
    def __init__(self, out=None):
        self.rows, self.out = [], out

    def add(self, part, name, verdict, saw, required=False, seconds=None, **figures):
        row = {"part": part, "name": name, "verdict": verdict, "saw": saw, "required": required, "seconds": seconds}
        row.update(figures)
        self.rows.append(row)
        if self.out and seconds is not None:  # what took its time
            print(f"{part}: {name}: {verdict}", file=self.out, flush=True)
        return row

    def failed(self):
        return [row for row in self.rows if row["required"] and row["verdict"] in BAD]

    def markdown(self):
        lines = ["| part | what | required | verdict | s | seen |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
            cells = [row["part"], row["name"], "yes" if row["required"] else "", row["verdict"], seconds, row["saw"]]
            lines.append("| " + " | ".join(str(c).replace("|", "/").replace("\n", " ") for c in cells) + " |")
        return "\n".join(lines)

    def counts(self):
        got = {}
        for row in self.rows:
            got[row["verdict"]] = got.get(row["verdict"], 0) + 1
        return ", ".join(f"{n} {verdict}" for verdict, n in sorted(got.items()))


def json_lines(text):
    """The objects among the lines of a program's output; what is no object, or broken off, is left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def last_object(text):
    """What a job prints last: its result, or None."""
    found = json_lines(text)
    return found[-1] if found else None


def stats_counters(texts):
    """Sums of the last counters that each process's stats log has."""
    sums = {}
    for text in texts:
        lines = [line for line in json_lines(text) if isinstance(line.get("counters"), dict)]
        for name, value in (lines[-1]["counters"] if lines else {}).items():
            if isinstance(value, (int, float)):
                sums[name] = sums.get(name, 0) + value
    return sums


def first_difference(expected, found):
    """Where two lists of results part, as text; None if they are the same to the last bit."""
    for i, (a, b) in enumerate(zip(expected, found)):
        if a != b:
            return f"result {i} is {b}, natively {a}"
    if len(expected) != len(found):
        return f"{len(found)} results, natively {len(expected)}"
    return None


def rates_of(rows):
    """GB/s of the host link by the probes' rows: into the device, out of it, and each way when both are busy."""
    values = {row.get("name"): row.get("value") for row in rows if row.get("unit") == "GB/s"}
    return {"in": values.get("copy-rates.chunks-to-device") or values.get("copy-rates.to-device"),
            "out": values.get("copy-rates.chunks-to-host") or values.get("copy-rates.to-host"),
            "both": values.get("copy-rates.both-ways-each")}


def overhead_bytes(rows):
    """What the library takes for contexts out of HEADROOM_VRAM: what is gone once one is there, unless that is others' memory."""
    values = {row.get("name"): row.get("value") for row in rows if row.get("unit") == "MiB"}
    total, gone = values.get("attributes.memory"), values.get("attributes.gone")
    if not total or gone is None:
        return 0
    assumed = min(total / 16, 1024)
    return int((gone if gone <= 2 * assumed else assumed) * (1 << 20))


def setting_bytes(wanted_bytes, context_bytes):
    """The HEADROOM_VRAM that leaves so much for the job's memory: contexts and a 64th, 256 MiB at most, come out of it."""
    plain = wanted_bytes + context_bytes
    return plain + min(plain // 63 + 1, 256 << 20)


def bound_seconds(native_s, peak_bytes, cap_bytes, rates):
    """The least that a step can take which touches all of its memory: what does not fit goes out and comes back over the link."""
    gbps = [rate for rate in (rates or {}).values() if rate]
    if not gbps or not native_s:
        return None
    return max(native_s, max(0, peak_bytes - cap_bytes) / (min(gbps) * 1e9))


def throughput(step_s, native_s, bound_s):
    """A step's time beside the native one's and the bound, as text."""
    if not step_s or not native_s:
        return "no time was told"
    text = f"{step_s * 1e3:.2f} ms a step, {native_s / step_s:.2f} of native ({native_s * 1e3:.2f} ms)"
    if bound_s:
        text += f", {bound_s / step_s:.2f} of the link's bound ({bound_s * 1e3:.2f} ms)"
    return text
