// Package docs holds what the Markdown pages say against a running suite: every sample is accepted by the API server,
// every command does what the page shows, and every flag, field, key and metric that is named exists.
//
// Pages say by a note after the language of a block what is to be done with it; docs/contributing/pages.md lists the
// notes.
package docs
