-- Begin nothing more; what has begun is finished.
obj.spec.paused = true
return obj
