package overview

import (
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/nodes"
)

type jobsData struct {
	Rows   []frame.JobRow
	Goings []nodes.Drain
	Since  *format.Moment // when the hub started
}

// Jobs lists the actions that users have started.
func Jobs(a *frame.Request) (frame.Page, error) {
	d := jobsData{Rows: frame.JobRows(a), Goings: nodes.Drains(a), Since: a.Jobs.Since(a.Now)}
	return frame.Page{Template: "jobs", Title: "Actions", Watch: []string{frame.JobsTopic, "nodes"}, Data: d}, nil
}
