package admin

import (
	"context"
	"fmt"
	"net/url"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// rolloutActions are what can be done to rollouts.
func rolloutActions() []*action {
	spec := func(o state.Object) fleet.FirmwareRolloutSpec { return o.(*fleet.FirmwareRollout).Spec }
	over := func(o state.Object) bool {
		st := &o.(*fleet.FirmwareRollout).Status
		return st.Phase == fleet.RolloutComplete || st.Phase == fleet.RolloutStopped
	}
	kept := func(o state.Object) bool {
		st := &o.(*fleet.FirmwareRollout).Status
		return st.Kept+st.Trying > 0
	}
	all := []*action{
		{Name: "stop", quick: true, Label: "Stop", Done: "is stopped", Means: "No node begins any more. Those that have their turn end it.",
			idle: func(o state.Object) string { return yes(spec(o).Paused || over(o), "does nothing") }, do: setRollout(tree{"paused": true})},
		{Name: "resume", quick: true, Label: "Resume", Done: "goes on", Means: "Nodes begin again, as windows, sites and budgets allow.",
			idle: func(o state.Object) string { return yes(!spec(o).Paused, "is not stopped") }, do: setRollout(tree{"paused": false})},
		{Name: "retry", Label: "Try again", Done: "tries again", Means: "Lets nodes that failed have another turn with the same configuration.",
			idle: func(o state.Object) string {
				return yes(o.(*fleet.FirmwareRollout).Status.Bad == 0, "has no node that failed")
			},
			notes: func(_ state.Snapshot, with []state.Object) (notes []string) {
				for _, o := range with {
					if st := o.(*fleet.FirmwareRollout).Status; st.Sentence != "" {
						notes = append(notes, st.Sentence+".")
					}
				}
				return append(notes, "Each board reboots into the configuration once more, and goes back by itself if it does not hold.")
			},
			fields: func(_ state.Snapshot, with []state.Object) []field { return []field{seenField(with)} },
			parse:  func(form url.Values) (any, error) { return parseSeen(form), nil },
			do: func(ctx context.Context, w *worker, o state.Object) (undo, error) {
				if err := w.given.(seen).changed(o); err != nil {
					return nil, err
				}
				return nil, w.patch(ctx, o, tree{"spec": tree{"retry": spec(o).Retry + 1, "paused": false}})
			}},
		{Name: "undo", Label: "Undo", Done: "is being undone", Destroy: true, Means: "Nodes that have kept the configuration go back to what they had before it: one first, then one site at a time, each drained before it reboots.",
			idle: func(o state.Object) string { return yes(spec(o).Undo || !kept(o), "has nothing to undo") }, notes: undoNotes, do: setRollout(tree{"undo": true, "paused": false})},
		{Name: "redo", Label: "Roll out again", Done: "goes forward again", Means: "Nodes get the configuration again, in turns as the first time.",
			idle: func(o state.Object) string { return yes(!spec(o).Undo, "is not undone") }, do: setRollout(tree{"undo": false, "paused": false})},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true, Means: "Takes nothing back: boards keep what they have kept, and nodes that were drained for it are uncordoned.", do: remove},
	}
	for _, a := range all {
		a.kind, a.one, a.verb, a.resource = state.FirmwareRollouts, "rollout", "patch", "firmwarerollouts"
		a.list, a.listed = rolloutsPath, "Boot configurations"
	}
	all[len(all)-1].verb = "delete"
	return all
}

// setRollout changes fields of a rollout's spec.
func setRollout(fields tree) func(context.Context, *worker, state.Object) (undo, error) {
	return func(ctx context.Context, w *worker, o state.Object) (undo, error) {
		return setSpec(ctx, w, o, fields)
	}
}

func undoNotes(_ state.Snapshot, with []state.Object) (notes []string) {
	for _, o := range with {
		st := o.(*fleet.FirmwareRollout).Status
		switch {
		case st.Kept == 0 && st.Trying == 0:
			notes = append(notes, fmt.Sprintf("No node of %s has kept it: nothing reboots.", o.GetName()))
		default:
			notes = append(notes, fmt.Sprintf("%s: nodes that kept it or try it now, which reboot into what they had before: %d.", o.GetName(), st.Kept+st.Trying))
		}
	}
	return append(notes, "A board goes back one step: to what it had before this configuration.")
}
