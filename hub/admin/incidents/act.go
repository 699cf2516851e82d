package incidents

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Actions are what users can do to incidents.
func Actions() []*frame.Action {
	all := []*frame.Action{
		{Name: "acknowledge", Quick: true, Label: "Acknowledge", Done: "is acknowledged",
			Means: "You take care of it: no further notification of its opening is sent.",
			Idle: func(o state.Object) string {
				switch i := o.(*fleet.Incident); {
				case i.State != fleet.IncidentOpen:
					return "is over"
				case i.Acknowledged != nil:
					return "is acknowledged already"
				}
				return ""
			}, Do: acknowledge(true)},
		{Name: "withdraw", Quick: true, Label: "Take back", Done: "is not acknowledged any more",
			Means: "It is open for others again, and its opening may be notified.",
			Idle: func(o state.Object) string {
				return frame.If(o.(*fleet.Incident).Acknowledged == nil, "is not acknowledged")
			}, Do: acknowledge(false)},
		{Name: "note", Label: "Note", Save: "Save", Done: "has a new note", Single: true,
			Means:  "Findings and what is being done. All users who see the incident can read the note.",
			Fields: noteFields, Parse: parseNote, Check: checkNote, Do: setNote},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = state.Incidents, "incident", "patch", string(state.Incidents)
		a.List, a.Listed = ListPath, "Incidents"
	}
	return all
}

// acknowledge sets or clears that the user takes care of an incident. The API writes who and when.
func acknowledge(is bool) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	patch := func(is bool) frame.JSON {
		if is {
			return frame.JSON{"acknowledged": frame.JSON{}}
		}
		return frame.JSON{"acknowledged": nil}
	}
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		back := func(ctx context.Context, w *frame.Worker) error { return w.Patch(ctx, o, patch(!is)) }
		return back, w.Patch(ctx, o, patch(is))
	}
}

const noteField = "note"

func noteFields(_ state.Snapshot, with []state.Object) []frame.Field {
	text := ""
	if len(with) == 1 {
		text = with[0].(*fleet.Incident).Note
	}
	return []frame.Field{{Name: noteField, Label: "Note", Type: "textarea", Value: text, Was: text, Changes: true}}
}

// A noted holds the new note, and the note that the form began with.
type noted struct{ text, was string }

func parseNote(form url.Values) (any, error) {
	lines := strings.NewReplacer("\r\n", "\n", "\r", "\n") // browsers send these line ends
	return noted{strings.TrimSpace(lines.Replace(form.Get(noteField))),
		lines.Replace(frame.WasIn(form, noteField))}, nil
}

func notePatch(text string) frame.JSON {
	if text == "" {
		return frame.JSON{"note": nil}
	}
	return frame.JSON{"note": text}
}

// checkNote asks the API whether it would accept the note, so that the user can correct the form.
func checkNote(ctx context.Context, w *frame.Worker, o state.Object) error {
	q := frame.APICall{Method: http.MethodPatch, Path: frame.ObjectURL(state.Incidents, "", o.GetName()),
		Media: frame.MergePatch, Query: url.Values{"dryRun": {"All"}}}
	return w.Send(ctx, q, notePatch(w.Given.(noted).text))
}

func setNote(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	given, was := w.Given.(noted), o.(*fleet.Incident).Note
	if was != given.was && was != given.text {
		return nil, errors.New("somebody has changed the note since you opened the form: read it, and write yours again")
	}
	back := func(ctx context.Context, w *frame.Worker) error { return w.Patch(ctx, o, notePatch(was)) }
	return back, w.Patch(ctx, o, notePatch(given.text))
}
