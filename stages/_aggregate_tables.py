"""Tables of ``aggregate_updates``."""

from __future__ import annotations

from pipeline.stage import Column, Table

TRANSFERS = Table(
    "transfers.parquet",
    "Transfer demands of both strategies; both carry the same updates in the same rounds.",
    (
        Column("demand_id", "string", "unique"),
        Column("job", "string", "federated job"),
        Column("round", "int32", "round in which the transfer counts"),
        Column("wave", "int32", "wave of that round at that gNB"),
        Column("part", "int32", "part of the wave (0 for per_ue)"),
        Column("strategy", "string", "per_ue or aggregate"),
        Column("source", "string", "node of the gNB"),
        Column("destination", "string", "node of the hub"),
        Column("bytes", "int64", "payload on the wire, from the shape of the job's model"),
        Column("release_p50_s", "float64", "forecast when the round begins: median"),
        Column("release_p95_s", "float64", "forecast when the round begins: 95 % quantile"),
        Column("release_s", "float64", "when it happened"),
        Column("deadline_s", "float64", "when it has to be at the hub"),
        Column("sum_n", "int64", "samples in it"),
        Column("updates", "int32", "updates in it"),
        Column("payload_sha256", "string", "of the tensors that were really encoded"),
        Column("tensor_bytes", "int64", "bytes of those tensors (smaller model)"),
    ),
)
UPDATES = Table(
    "updates.parquet",
    "One row for each round that a UE took part in, and one more for a retransmission.",
    (
        Column("job", "string", "federated job"),
        Column("round", "int32", "round that the UE trained for"),
        Column("ue", "string", "name"),
        Column("ue_class", "string", "device class"),
        Column("gnb", "string", "gNB that counted it, else the one where the round began"),
        Column("n_k", "int64", "samples"),
        Column("compute_s", "float64", "training time"),
        Column("upload_start_s", "float64", "begin of the upload", nullable=True),
        Column("upload_s", "float64", "duration of the upload", nullable=True),
        Column("arrival_s", "float64", "last bit at the gNB", nullable=True),
        Column("fate", "string", "delivered, carried (a later round), dropped, duplicate"),
        Column("reason", "string", "why dropped", nullable=True),
        Column("counted_round", "int32", "round that it counts in", nullable=True),
        Column("wave", "int32", "wave that ships it", nullable=True),
    ),
)
WAVES = Table(
    "waves.parquet",
    "Waves of all gNBs.",
    (
        Column("job", "string", "federated job"),
        Column("round", "int32", "round"),
        Column("gnb", "string", "node of the gNB"),
        Column("wave", "int32", "index in the round at that gNB"),
        Column("closed_s", "float64", "when the last update could join"),
        Column("closed_by", "string", "complete, cut_off, wave_time or next_round"),
        Column("updates", "int32", "updates in it"),
        Column("sum_n", "int64", "samples in it"),
        Column("weight", "float64", "samples, discounted where late"),
    ),
)

QUALITY = Table(
    "quality.parquet",
    "Accuracy of the global model against simulated time.",
    (
        Column("strategy", "string", "wait, drop, carry_over or carry_discount"),
        Column("seed", "int32", "repetition"),
        Column("round", "int32", "rounds finished"),
        Column("time_s", "float64", "when this model was ready"),
        Column("accuracy", "float64", "on texts of all labels, 0 to 1"),
        Column("slow_class_accuracy", "float64", "on texts of the slow devices' labels"),
        Column("updates", "int32", "counted in the last round"),
    ),
)
