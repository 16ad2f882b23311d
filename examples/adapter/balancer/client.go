// Package balancer is an adapter for a load balancer with an HTTP API.
package balancer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Member is one member of a group of the load balancer.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Port    int32  `json:"port"`
	Weight  int32  `json:"weight"`
	// Owner says who put the member there.
	Owner string `json:"owner"`
}

// Changes are what one call changes in a group.
type Changes struct {
	Put    []Member `json:"put,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Client calls the load balancer's API: here stands the provider's SDK.
type Client struct {
	// URL is where the API is.
	URL string
	// HTTP makes the requests.
	HTTP *http.Client
}

// Members returns the members of a group: those with these IDs as far as they exist, or all if no ID is given.
func (c *Client) Members(ctx context.Context, group string, ids ...string) ([]Member, error) {
	var members []Member
	err := c.call(ctx, http.MethodGet, "/groups/"+url.PathEscape(group)+"/members?"+url.Values{"id": ids}.Encode(),
		nil, &members)
	return members, err
}

// Change changes members. It returns those that failed, by ID; all others are accepted. With an error none is.
func (c *Client) Change(ctx context.Context, group string, changes Changes) (failed map[string]string, err error) {
	err = c.call(ctx, http.MethodPost, "/groups/"+url.PathEscape(group)+"/changes", changes, &failed)
	return failed, err
}

// Create makes a group, Delete removes it. Neither fails if that is so already.
func (c *Client) Create(ctx context.Context, group string) error {
	return c.call(ctx, http.MethodPut, "/groups/"+url.PathEscape(group), nil, nil)
}

// Delete is described at Create.
func (c *Client) Delete(ctx context.Context, group string) error {
	return c.call(ctx, http.MethodDelete, "/groups/"+url.PathEscape(group), nil, nil)
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return err // names method and URL itself
	}
	defer response.Body.Close()
	const most = 16 << 20
	answer, err := io.ReadAll(io.LimitReader(response.Body, most))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", method, path, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer[:min(len(answer), 200)])
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
