package bulk

import "container/heap"

// retries are members whose change is to be made again, the one that is due first in front.
type retries []*member

func (r *retries) push(m *member)   { heap.Push(r, m) }
func (r *retries) remove(m *member) { heap.Remove(r, m.index) }

// pop takes the first member out.
func (r *retries) pop() *member {
	m := (*r)[0]
	heap.Pop(r)
	return m
}

// Len is part of heap.Interface.
func (r retries) Len() int { return len(r) }

// Less is part of heap.Interface.
func (r retries) Less(i, j int) bool { return r[i].due.Before(r[j].due) }

// Swap is part of heap.Interface.
func (r retries) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i, j
}

// Push is part of heap.Interface.
func (r *retries) Push(x any) {
	m, _ := x.(*member)
	m.index = len(*r)
	*r = append(*r, m)
}

// Pop is part of heap.Interface.
func (r *retries) Pop() any {
	old := *r
	m := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return m
}
