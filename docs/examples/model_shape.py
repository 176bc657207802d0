"""The size of LoRA updates of a model that the shape table does not have."""

from ranloom.federated.payload import payload_bytes
from ranloom.federated.shapes import ModelShape, lora_layout

TINY_LLAMA = ModelShape(
    name="tinyllama-1.1b",
    layers=22,
    hidden=2048,
    intermediate=5632,
    gated=True,  # Llama's feed-forward part; False for OPT's
    kv_width=256,  # 4 key and value heads of 64
    source="config.json of TinyLlama-1.1B",
)
LAYOUT = lora_layout(TINY_LLAMA, 16, ["q_proj", "v_proj"])

if __name__ == "__main__":
    size = payload_bytes("fp16", LAYOUT.elements)
    print(f"{LAYOUT.elements} values, {size / 1e6:.2f} MB in fp16")
