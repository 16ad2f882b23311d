package alibabacloudslb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

var _ api.Mover[*corev1.Service, Weight] = &Owning{}

// Name is part of api.Adapter.
func (o *Owning) Name() string { return OwningName }

// Selector is part of api.Adapter: controlled Services that name server groups.
func (o *Owning) Selector(service *corev1.Service) labels.Selector {
	if _, ok := service.Annotations[ServerGroupsAnnotation]; !ok {
		return nil
	}
	return api.ServiceSelector(service)
}

// Members is part of api.Adapter: one member for each server group and port that the Service names.
func (o *Owning) Members(service *corev1.Service, pod *corev1.Pod, serve bool) (map[string]Weight, error) {
	w, err := o.groups.desiredOf(service)
	if err != nil {
		return nil, err
	}
	members := make(map[string]Weight, len(w.targets))
	if !serve && w.remove {
		return members, nil
	}
	for _, t := range w.targets {
		address := addressOf(pod, t.group.AddressFamily == "IPv6")
		if address == "" {
			continue
		}
		weight := w.weight
		if !serve {
			weight = 0
		}
		members[place{group: t.group.ID, address: address, port: t.port}.id()] = weight
	}
	return members, nil
}

// Read is part of api.Adapter. Without IDs it reads the groups that the Service names and those that are for its
// namespace by name: what an earlier annotation left there is found, and what it left in a group for all namespaces is
// not, as reading all of those would cost a call each.
func (o *Owning) Read(ctx context.Context, service *corev1.Service, ids []string) ([]api.Held[Weight], error) {
	groups := map[string]bool{}
	for _, id := range ids {
		p, err := parsePlace(id)
		if err != nil {
			return nil, err
		}
		groups[p.group] = true
	}
	if len(ids) == 0 {
		for _, group := range o.groups.ownOf(service.Namespace) {
			groups[group] = true
		}
		if w, err := o.groups.desiredOf(service); err == nil { // if not, it names none that it may use
			for _, t := range w.targets {
				groups[t.group.ID] = true
			}
		}
	}
	mark := o.mark(service)
	var held []api.Held[Weight]
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		servers, err := o.cloud.servers(ctx, group)
		if err != nil {
			return nil, fmt.Errorf("reading server group %s: %w", o.groups.called(group), err)
		}
		for _, s := range servers {
			if s.Description == mark {
				held = append(held, api.Held[Weight]{ID: placeOf(group, s).id(), State: Weight(s.Weight), Serving: s.Weight > 0})
			}
		}
	}
	return held, nil
}

// Apply is part of api.Mover. For each group it reads what is there, and makes a call for each kind of change that is
// missing: weights first, since Pods wait for those.
func (o *Owning) Apply(ctx context.Context, service *corev1.Service, changes []api.Change[Weight]) error {
	failed := api.MemberErrors{}
	byGroup := map[string]map[place]api.Change[Weight]{}
	for _, c := range changes {
		p, err := parsePlace(c.ID)
		if err != nil {
			failed[c.ID] = err
			continue
		}
		if byGroup[p.group] == nil {
			byGroup[p.group] = map[place]api.Change[Weight]{}
		}
		byGroup[p.group][p] = c
	}
	var last error
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		b := &batch{cloud: o.cloud, group: group, called: o.groups.called(group), mark: o.mark(service), failed: failed,
			calls: maxCallsPerGroup}
		if err := b.apply(ctx, byGroup[group]); err != nil {
			last = err
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case last != nil && len(failed) == len(changes) && sameFor(failed, last):
		return last // nothing is known to have succeeded, for one reason
	}
	return failed
}

func sameFor(failed api.MemberErrors, err error) bool {
	for _, other := range failed {
		if other.Error() != err.Error() {
			return false
		}
	}
	return true
}

// mark is the description of the Service's backend servers. Names that do not fit become a digest.
func (o *Owning) mark(service *corev1.Service) string {
	const most = 80 // characters of a description (SLB API 2014-05-15)
	name := service.Namespace + "/" + service.Name
	if mark := o.groups.Owner + "/" + name; len(mark) <= most {
		return mark
	}
	sum := sha256.Sum256([]byte(name))
	return o.groups.Owner + "/" + hex.EncodeToString(sum[:16])
}

// called is how a group is spoken of: its name, if it has one here.
func (g *ServerGroups) called(id string) string {
	for _, group := range g.Groups {
		if group.ID == id {
			return group.Name + " (" + id + ")"
		}
	}
	return id
}

func placeOf(group string, s server) place {
	return place{group: group, address: s.ServerIP, port: s.Port}
}

// maxCallsPerGroup bounds the changing calls of one batch: three kinds, and what it takes to find one server among
// maxServersPerCall that the provider does not accept.
const maxCallsPerGroup = 15

// batch is the changes of one group under way.
type batch struct {
	cloud        *cloud
	group        string
	called, mark string
	failed       api.MemberErrors
	calls        int
}

// apply makes the changes. Members that failed are in b.failed; the error is the last one that was not about a member.
func (b *batch) apply(ctx context.Context, changes map[place]api.Change[Weight]) error {
	servers, err := b.cloud.servers(ctx, b.group)
	if err != nil {
		err = fmt.Errorf("reading server group %s: %w", b.called, err)
		for _, c := range changes {
			b.failed[c.ID] = err
		}
		return err
	}
	there := make(map[place]server, len(servers))
	for _, s := range servers {
		there[placeOf(b.group, s)] = s
	}
	var set, remove, add []server
	for _, p := range sortedPlaces(changes) {
		c := changes[p]
		s, found := there[p]
		switch {
		case found && s.Description != b.mark && !c.Remove:
			b.failed[c.ID] = fmt.Errorf(
				"server group %s has %s already, with description %q, which is not ours: remove it there, or use another group or port",
				b.called, c.ID, s.Description)
		case found && s.Description == b.mark && c.Remove:
			remove = append(remove, s)
		case found && !c.Remove && s.Weight != int(c.State):
			s.Weight = int(c.State)
			set = append(set, s)
		case !found && !c.Remove:
			add = append(add, server{ServerIP: p.address, Port: p.port, Weight: int(c.State), Type: "eni", Description: b.mark})
		}
	}
	return errors.Join(
		b.inChunks(ctx, "setting weights in", set, setServers),
		b.inChunks(ctx, "removing from", remove, removeServers),
		b.add(ctx, add),
	)
}

func sortedPlaces(changes map[place]api.Change[Weight]) []place {
	return slices.SortedFunc(maps.Keys(changes), func(x, y place) int {
		if x.id() < y.id() {
			return -1
		}
		return 1
	})
}

// add finds the network interfaces of new servers first: the API wants their IDs.
func (b *batch) add(ctx context.Context, servers []server) error {
	if len(servers) == 0 {
		return nil
	}
	var v4, v6 []string
	for _, s := range servers {
		if isIPv6(s.ServerIP) {
			v6 = append(v6, s.ServerIP)
		} else {
			v4 = append(v4, s.ServerIP)
		}
	}
	found, err := b.cloud.interfaces(ctx, v4, false)
	if err == nil && len(v6) > 0 {
		var more map[string]string
		if more, err = b.cloud.interfaces(ctx, v6, true); err == nil {
			maps.Copy(found, more)
		}
	}
	if err != nil {
		return b.fail(servers, fmt.Errorf("finding the network interfaces of Pods for server group %s: %w", b.called, err))
	}
	known := servers[:0]
	for _, s := range servers {
		if s.ServerID = found[s.ServerIP]; s.ServerID == "" {
			b.failed[placeOf(b.group, s).id()] = fmt.Errorf(
				"no network interface in VPC %s has address %s: it may not be attached yet, or the Pod has no network interface of its own (Terway is needed)",
				b.cloud.vpc, s.ServerIP)
			continue
		}
		known = append(known, s)
	}
	return b.inChunks(ctx, "adding to", known, addServers)
}

// inChunks makes one call for each maxServersPerCall servers. After a failure that is not about the servers themselves
// it stops, so as not to press a provider that refuses.
func (b *batch) inChunks(ctx context.Context, doing string, servers []server, action string) error {
	for len(servers) > 0 {
		n := min(len(servers), maxServersPerCall)
		if err := b.try(ctx, doing, servers[:n], action); err != nil {
			return b.fail(servers[n:], err)
		}
		servers = servers[n:]
	}
	return nil
}

// try makes the call. When the provider rejects several servers at once, halves are tried, to find those that it means.
// The error is one that is not about the servers; they have it already.
func (b *batch) try(ctx context.Context, doing string, servers []server, action string) error {
	b.calls--
	err := b.cloud.change(ctx, action, b.group, servers)
	if err == nil {
		return nil
	}
	told := fmt.Errorf("%s server group %s: %w", doing, b.called, err)
	switch {
	case !isRejected(err):
		return b.fail(servers, told)
	case len(servers) == 1 || b.calls < 2:
		_ = b.fail(servers, told) // these alone; others go on
		return nil
	}
	half := len(servers) / 2
	if err := b.try(ctx, doing, servers[:half], action); err != nil {
		return b.fail(servers[half:], err)
	}
	return b.try(ctx, doing, servers[half:], action)
}

// fail notes the error for the servers and returns it.
func (b *batch) fail(servers []server, err error) error {
	for _, s := range servers {
		b.failed[placeOf(b.group, s).id()] = err
	}
	return err
}
