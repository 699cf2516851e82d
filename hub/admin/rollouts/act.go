// Package rollouts shows rollouts of boot configurations, and each node's part in them.
package rollouts

import (
	"context"
	"fmt"
	"net/url"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Actions are what users can do to rollouts.
func Actions() []*frame.Action {
	return append(actions(boot), actions(agents)...)
}

func actions(k kind) []*frame.Action {
	spec := func(o state.Object) *fleet.RolloutStrategy { return fleet.RolloutOf(o).Spec }
	over := func(o state.Object) bool {
		st := fleet.RolloutOf(o).Status
		return st.Phase == fleet.RolloutComplete || st.Phase == fleet.RolloutStopped
	}
	kept := func(o state.Object) bool {
		st := fleet.RolloutOf(o).Status
		return st.Kept+st.Trying > 0
	}
	all := []*frame.Action{
		{Name: "stop", Quick: true, Label: "Stop", Done: "is stopped",
			Means: "No further node begins. Nodes that have begun finish.",
			Idle:  func(o state.Object) string { return frame.If(spec(o).Paused || over(o), "does nothing") },
			Do:    setRollout(frame.JSON{"paused": true})},
		{Name: "resume", Quick: true, Label: "Resume", Done: "goes on",
			Means: "Nodes begin again, as windows, sites and disruption budgets allow.",
			Idle:  func(o state.Object) string { return frame.If(!spec(o).Paused, "is not stopped") },
			Do:    setRollout(frame.JSON{"paused": false})},
		{Name: "retry", Label: "Try again", Done: "tries again",
			Means: "Failed nodes try the same configuration again.",
			Idle: func(o state.Object) string {
				return frame.If(fleet.RolloutOf(o).Status.Bad == 0, "has no node that failed")
			},
			Notes: func(_ state.Snapshot, with []state.Object) (notes []string) {
				for _, o := range with {
					if st := fleet.RolloutOf(o).Status; st.Sentence != "" {
						notes = append(notes, st.Sentence+".")
					}
				}
				return append(notes,
					"Each board reboots into the configuration once more, and goes back by itself if it does not hold.")
			},
			Fields: func(_ state.Snapshot,
				with []state.Object) []frame.Field {
				return []frame.Field{frame.SeenField(with)}
			},
			Parse: func(form url.Values) (any, error) { return frame.ParseSeen(form), nil },
			Do: func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
				if err := w.Given.(frame.Seen).Changed(o); err != nil {
					return nil, err
				}
				return nil, w.Patch(ctx, o, frame.JSON{"spec": frame.JSON{"retry": spec(o).Retry + 1, "paused": false}})
			}},
		{Name: "undo", Label: "Undo", Done: "is being undone", Destroy: true,
			Means: "Nodes that have kept the configuration go back to what they had before it: one first, then one site at " +
				"a time, each drained before it reboots.",
			Idle:  func(o state.Object) string { return frame.If(spec(o).Undo || !kept(o), "has nothing to undo") },
			Notes: undoNotes, Do: setRollout(frame.JSON{"undo": true, "paused": false})},
		{Name: "redo", Label: "Roll out again", Done: "goes forward again",
			Means: "Nodes get the configuration again, in the same steps as the first time.",
			Idle:  func(o state.Object) string { return frame.If(!spec(o).Undo, "is not undone") },
			Do:    setRollout(frame.JSON{"undo": false, "paused": false})},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "Boards keep their configuration, and nodes that were drained for the rollout are uncordoned.",
			Do:    frame.Remove},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = k.of, "rollout", "patch", k.resource
		a.List, a.Listed = k.path, k.title
		if words, ok := agentWords[a.Name]; ok && k.of == state.AgentRollouts {
			a.Means = words
			a.Notes = nil
		}
	}
	all[len(all)-1].Verb = "delete"
	return all
}

// agentWords say what the actions mean for agents: no pod stops, and nothing reboots.
var agentWords = map[string]string{
	"retry": "Failed devices try the same version once more, and go back by themselves if it does not hold.",
	"undo": "Devices that run the version go back to the one before: one first, then one site at a time. " +
		"Their containers run on.",
	"redo":   "Devices get the version again, in turns as the first time.",
	"delete": "Undoes nothing: devices keep the agent that they run.",
}

// setRollout changes fields of a rollout's spec.
func setRollout(fields frame.JSON) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		return frame.SetSpec(ctx, w, o, fields)
	}
}

func undoNotes(_ state.Snapshot, with []state.Object) (notes []string) {
	for _, o := range with {
		st := fleet.RolloutOf(o).Status
		switch {
		case st.Kept == 0 && st.Trying == 0:
			notes = append(notes, fmt.Sprintf("No node of %s has kept it: nothing reboots.", o.GetName()))
		default:
			notes = append(notes, fmt.Sprintf(
				"%s: %d nodes kept it or try it now; they reboot into what they had before.", o.GetName(),
				st.Kept+st.Trying))
		}
	}
	return append(notes, "A board goes back one step: to what it had before this configuration.")
}
