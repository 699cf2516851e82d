// Package web holds the page as files: templates, style sheet and script, built
// into the hub. Nothing is generated and nothing comes from another host.
//
// It has no code and no opinion; package hub/admin/frame fills the templates in and serves
// them.
package web

import "embed"

// Files are templates/*.html and static/*.
//
//go:embed templates static
var Files embed.FS
