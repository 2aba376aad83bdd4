" nd.vim - two columns, `#` comments, :make runs ndc check.
if exists("b:did_ftplugin")
  finish
endif
let b:did_ftplugin = 1

setlocal expandtab shiftwidth=2 softtabstop=2 textwidth=100
setlocal comments=:# commentstring=#\ %s formatoptions-=t
setlocal makeprg=ndc\ check\ %:S
setlocal errorformat=%f:%l:%c:\ %trror:\ %m,%f:%l:%c:\ %tarning:\ %m,%-G%.%#

let b:undo_ftplugin = "setlocal et< sw< sts< tw< com< cms< fo< mp< efm<"
