package bulk

import "container/heap"

// retries are members whose change is to be made again, the one that is due first in front.
type retries[S comparable] []*member[S]

func (r *retries[S]) push(m *member[S])   { heap.Push(r, m) }
func (r *retries[S]) remove(m *member[S]) { heap.Remove(r, m.index) }

// pop takes the first member out.
func (r *retries[S]) pop() *member[S] {
	m := (*r)[0]
	heap.Pop(r)
	return m
}

// Len is part of heap.Interface.
func (r retries[S]) Len() int { return len(r) }

// Less is part of heap.Interface.
func (r retries[S]) Less(i, j int) bool { return r[i].due.Before(r[j].due) }

// Swap is part of heap.Interface.
func (r retries[S]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i, j
}

// Push is part of heap.Interface.
func (r *retries[S]) Push(x any) {
	m, _ := x.(*member[S])
	m.index = len(*r)
	*r = append(*r, m)
}

// Pop is part of heap.Interface.
func (r *retries[S]) Pop() any {
	old := *r
	m := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return m
}
