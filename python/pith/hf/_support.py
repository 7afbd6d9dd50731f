"""Which models of transformers can be served: their layers' shapes, and what stands against them."""

import dataclasses
import html
import sys

import torch

from .. import _pith

ATTENTION = "pith"
USE_IT = "call model.set_attn_implementation('pith')"


def refuse(why):
    raise _pith.Unsupported(why)


def device_problem(kind):
    """The reason to refuse tensors on this type of device, or None."""
    if kind == "cpu" or (kind == "cuda" and _pith.has_cuda and torch.version.hip is None):
        return None
    if kind == "meta":
        return "weights that are offloaded or not loaded; load the whole model onto one device"
    if kind != "cuda" or torch.version.hip is not None:
        return "Pith computes on the CPU and on NVIDIA GPUs; model.to('cpu')"
    return ("this package was built without CUDA; in the checkout: pip install . -C cmake.define.PITH_CUDA=ON, which "
            "needs nvcc; or model.to('cpu')")


def text_config(config):
    return config.get_text_config(decoder=True)


@dataclasses.dataclass
class LayerReport:
    """One attention layer as its configuration describes it."""

    layer: int
    kind: str
    query_heads: int
    kv_heads: int
    head_dim: int
    window: int  # newest rows that a query sees; 0 = all
    problems: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Report:
    """Answer of check(): `ok`, or `problems` of the model and of its layers."""

    model: str
    policy: str
    layers: list[LayerReport]
    problems: list[str]

    @property
    def ok(self):
        return not self.problems and not any(layer.problems for layer in self.layers)

    def all_problems(self):
        """Each once, with the layers that have it."""
        places = {}
        for layer in self.layers:
            for problem in layer.problems:
                places.setdefault(problem, []).append(layer.layer)
        return self.problems + [f"{_runs(where)}: {problem}" for problem, where in places.items()]

    def __bool__(self):
        return self.ok

    def __repr__(self):
        shapes = {}
        for layer in self.layers:
            shape = (layer.kind, layer.query_heads, layer.kv_heads, layer.head_dim, layer.window)
            shapes.setdefault(shape, []).append(layer.layer)
        lines = [f"{self.model} under '{self.policy}': " + ("supported" if self.ok else "refused")]
        lines += [f"  {_runs(where)}: {kind}, {h} query heads, {g} KV heads of {d}" +
                  (f", window {window}" if window else "") for (kind, h, g, d, window), where in shapes.items()]
        return "\n".join(lines + [f"  - {problem}" for problem in self.all_problems()])

    def _repr_html_(self):
        return "<pre>" + html.escape(repr(self)) + "</pre>"


def _runs(layers):
    """[0, 1, 2, 5] as "layers 0-2, 5"."""
    runs = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    named = ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {named}"


def layer_reports(config):
    """A LayerReport per layer, of a text model's configuration."""
    count = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None:
        kind = "full_attention"
        if window is not None and getattr(config, "use_sliding_window", True):
            kind = "sliding_attention"
        elif getattr(config, "attention_chunk_size", None) is not None:
            kind = "chunked_attention"
        kinds = [kind] * count
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    reports = []
    for layer, kind in enumerate(kinds[:count]):
        sliding = kind == "sliding_attention"
        report = LayerReport(layer, kind, heads, kv_heads, head_dim, int(window or 0) if sliding else 0)
        if kind not in ("full_attention", "sliding_attention"):
            report.problems.append(f"{kind} is neither full nor sliding attention")
        reports.append(report)
    return reports


def config_problems(config):
    """Reasons to refuse a model, from its configuration alone."""
    problems = []
    if getattr(config, "is_encoder_decoder", False):
        problems.append("it has an encoder; decoders alone are supported")
    if not getattr(config, "is_causal", True):
        problems.append("its attention is not causal")
    if getattr(config, "kv_lora_rank", None) is not None:
        problems.append("keys and values are latent (MLA): they have no rows of heads")
    if getattr(config, "num_kv_shared_layers", 0):
        problems.append(f"num_kv_shared_layers={config.num_kv_shared_layers}: layers read the keys of others")
    return problems


def model_problems(model):
    """The same of a model, with what its modules say."""
    config = text_config(model.config)
    problems = config_problems(config)
    if not hasattr(sys.modules.get(type(model).__module__), "ALL_ATTENTION_FUNCTIONS"):
        problems.append(f"{type(model).__name__} does not look its attention function up: it cannot be replaced")
    if model.training and getattr(config, "attention_dropout", 0):
        problems.append("it is in training mode with attention dropout; call model.eval()")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    found = [(device, device_problem(torch.device(device).type)) for device in devices]
    problems += [f"weights on {device}: {problem}" for device, problem in found if problem]
    if len(devices) > 1:
        problems.append(f"its weights are on {', '.join(devices)}; a PithCache is on one device: load the model with "
                        "device_map={'': 0} or onto the CPU")
    return problems


def check(model, policy=None):
    """PithCache's refusals, layer by layer, without running: of a model, or of its configuration alone.
    `bool(report)` says whether it is supported. With a policy, that is tried too."""
    is_model = hasattr(model, "named_parameters")
    config = text_config(model.config if is_model else model)
    problems = model_problems(model) if is_model else config_problems(config)
    report = Report(type(model).__name__, str(policy or "exact"), layer_reports(config), problems)
    if policy is not None and report.ok:
        from ._cache import PithCache  # which asks this function itself
        try:
            PithCache(policy, **{"model" if is_model else "config": model})
        except _pith.PithError as error:
            report.problems.append(str(error))
    return report
