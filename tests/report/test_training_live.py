"""The figure of the live run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from ranloom.report.data import ReportData
from ranloom.report.sections.training_live import NOTES, pictures
from ranloom.training.messages import Note, NoteKind
from ranloom.training.runtime.summary import notes_table


def test_work_loss_and_misfortune_are_drawn(tmp_path):
    notes = [
        (5.0, Note(NoteKind.STEP_OPENED, step=0)),
        (5.1, Note(NoteKind.REROUTED, 0, 1, 0, 3, 0.0, "planned")),
        (5.2, Note(NoteKind.COMMITTED, 0, 1, 0, 3)),
        (5.3, Note(NoteKind.COMMITTED, 0, 0, 1, 3)),
        (5.4, Note(NoteKind.SITE_LOST, site=1)),
        (5.5, Note(NoteKind.STEP_LOSS, 0, value=4.5)),
        (5.6, Note(NoteKind.RECOVERED, value=2.0)),
    ]
    path = tmp_path / "notes.parquet"
    pq.write_table(pa.table(notes_table(notes)), path)
    (picture,) = pictures(ReportData({}, {}, {NOTES: path}, {}))
    loss, work = picture.figure.axes
    assert loss.lines[0].get_ydata().tolist() == [4.5]
    drawn = {line.get_label(): line for line in work.lines}
    assert drawn["even stage, rerouted"].get_ydata() == [1]
    assert drawn["odd stage"].get_ydata() == [0]
    assert {"site lost", "coordinator back"} <= drawn.keys()
    assert "MLR" not in drawn


def test_without_notes_there_is_no_figure(tmp_path):
    assert pictures(ReportData({}, {}, {NOTES: tmp_path / "none"}, {})) == ()
    assert pictures(ReportData({}, {}, {}, {})) == ()
